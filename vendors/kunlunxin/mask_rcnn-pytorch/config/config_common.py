"""Values of all shapes on R300."""

num_workers = 8
