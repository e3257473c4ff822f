"""FlagPerf's values of all shapes on C500, where they differ from the reference scale."""

train_batch_size = 16
eval_batch_size = 16
