"""The agent of a host: it starts the ranks of one round, watches them and packs their logs."""
