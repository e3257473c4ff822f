"""What all shapes on R300 share, FlagPerf's; all else is the reference's."""

precision = "fp32"
seed = 4096
