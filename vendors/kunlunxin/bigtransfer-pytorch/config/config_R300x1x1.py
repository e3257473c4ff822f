"""FlagPerf's values on R300 at 1x1."""

train_batch_size = 8
eval_batch_size = 8
gradient_accumulation_steps = 2
max_steps = 80000
