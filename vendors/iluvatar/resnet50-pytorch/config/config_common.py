"""What all shapes on BI-V100 share: FlagPerf's, whose batch and learning rate are the same for every shape."""

precision = "fp32"
train_batch_size = 192
eval_batch_size = 192
learning_rate = 0.6
num_workers = 8
