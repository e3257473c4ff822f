"""Sampling of a host during a round: its load, memory, power and devices."""
