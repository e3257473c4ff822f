"""Measurements of a machine: the loop that times one iteration, its statistics, and a rank's program."""
