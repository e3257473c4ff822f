"""FlagPerf's values on C500 at 2x8."""

train_batch_size = 384
eval_batch_size = 384
