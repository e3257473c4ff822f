"""Values of all shapes on S4000: FlagPerf's, with channels_last from its extern code."""

precision = "fp32"
channels_last = True
num_workers = 8
