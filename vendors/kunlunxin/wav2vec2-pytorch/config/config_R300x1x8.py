"""Eight cards, to the target."""

train_batch_size = 6
eval_batch_size = 6
gradient_accumulation_steps = 1
num_workers = 8
