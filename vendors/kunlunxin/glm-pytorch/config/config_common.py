"""FlagPerf's values of all shapes on R300, where they differ from the reference scale."""

precision = "fp32"
seed = 4096
