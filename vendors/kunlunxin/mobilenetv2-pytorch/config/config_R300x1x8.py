"""FlagPerf's values on R300 at 1x8."""

train_batch_size = 256
eval_batch_size = 256
learning_rate = 0.36
