"""The outcome of one round: what was measured and how far it can be trusted."""
