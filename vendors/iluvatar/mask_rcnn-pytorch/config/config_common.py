"""Values of all shapes on BI-V100."""

num_workers = 8
