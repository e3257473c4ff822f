"""What all shapes on S4000 share: FlagPerf's batch, and its extern's channels_last."""

precision = "fp32"
channels_last = True
num_workers = 8
