"""FlagPerf's values on R300 at 1x1."""

train_batch_size = 64
