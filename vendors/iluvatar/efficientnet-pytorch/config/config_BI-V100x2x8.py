"""FlagPerf's values on BI-V100 at 2x8."""

train_batch_size = 96
eval_batch_size = 96
learning_rate = 0.05
