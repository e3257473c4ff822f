"""A run: it plans the selected cases, runs each round once, and writes the results."""
