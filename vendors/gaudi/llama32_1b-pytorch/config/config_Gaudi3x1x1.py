"""One device, for throughput. Not yet run."""

train_batch_size = 4
gradient_accumulation_steps = 1
max_steps = 1_200_000 * 8  # the suite's batch is 8 times as large
lr_decay = 1_200_000 * 8
lr_warmup = 512 * 8
