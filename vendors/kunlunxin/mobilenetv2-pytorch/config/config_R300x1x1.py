"""FlagPerf's values on R300 at 1x1."""

train_batch_size = 256
eval_batch_size = 128
learning_rate = 0.1
