"""FlagPerf's values on BI-V100 at 1x1."""

train_batch_size = 352
eval_batch_size = 352
