"""FlagPerf's values on BI-V100 at 1x1."""

train_batch_size = 96
eval_batch_size = 96
learning_rate = 0.05
