"""Values of all shapes on R300."""

seed = 23333
precision = "fp32"
num_workers = 8
