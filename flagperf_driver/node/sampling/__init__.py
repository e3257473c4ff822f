"""What is sampled on a host while a round runs: its load, memory, power and devices."""
