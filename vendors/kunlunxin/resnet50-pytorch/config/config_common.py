"""What all shapes on R300 share."""

precision = "fp32"
num_workers = 8
