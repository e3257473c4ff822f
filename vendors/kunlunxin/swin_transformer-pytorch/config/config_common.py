"""Values of all shapes on R300."""

precision = "fp32"
