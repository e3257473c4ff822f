"""Values of all shapes on A100."""

num_workers = 8
