"""FlagPerf's values on C500 at 1x1."""

train_batch_size = 384
eval_batch_size = 384
