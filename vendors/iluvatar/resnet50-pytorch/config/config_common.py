"""FlagPerf's values of all shapes on BI-V100; batch and learning rate are the same for all shapes."""

precision = "fp32"
train_batch_size = 192
eval_batch_size = 192
learning_rate = 0.6
num_workers = 8
