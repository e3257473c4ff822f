"""Values of all shapes on A100."""

vendor = "nvidia"
seed = 23333
num_workers = 8
