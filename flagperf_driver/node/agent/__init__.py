"""The agent on a host: start the ranks of one round, supervise them, and pack their logs."""
