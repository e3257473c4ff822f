"""Values of all shapes on R300."""

precision = "fp32"
num_workers = 8
