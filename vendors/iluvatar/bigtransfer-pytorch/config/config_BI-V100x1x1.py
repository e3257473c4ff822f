"""Not in FlagPerf; with the batch and the learning rate of 1x8."""

train_batch_size = 14
eval_batch_size = 14
max_steps = 80000
