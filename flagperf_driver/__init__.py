"""The far side: what runs on a host and in every rank. Python >= 3.8; at import the standard library only."""
