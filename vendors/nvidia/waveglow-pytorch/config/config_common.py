"""Values of all shapes on A100."""

vendor = "nvidia"
num_workers = 8
