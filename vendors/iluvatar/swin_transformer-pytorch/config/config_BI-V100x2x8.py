"""FlagPerf's values on BI-V100 at 2x8."""

train_batch_size = 352
eval_batch_size = 352
