"""Values of all shapes on S4000."""

num_workers = 8
