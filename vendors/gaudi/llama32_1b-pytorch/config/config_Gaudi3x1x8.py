"""To the target with the suite's batch. Not yet run."""

train_batch_size = 4
gradient_accumulation_steps = 1
