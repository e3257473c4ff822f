"""Values of all shapes on H100 and H200, with settings for speed."""

vendor = "nvidia"
precision = "bf16"
compile = True  # noqa: A001
num_workers = 16
