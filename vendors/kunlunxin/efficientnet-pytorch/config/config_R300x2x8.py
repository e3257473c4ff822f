"""FlagPerf's values on R300 at 2x8."""

train_batch_size = 64
