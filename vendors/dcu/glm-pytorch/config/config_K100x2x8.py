"""Not in FlagPerf; with the batch of 1x8, as in its A100 configs."""

train_batch_size = 8
eval_batch_size = 8
max_steps = 1388270 * 4 // (train_batch_size * 16)
eval_steps = 600 * 8 * 4 // (train_batch_size * 16)
