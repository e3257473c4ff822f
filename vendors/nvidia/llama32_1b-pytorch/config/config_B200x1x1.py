"""One B200, for throughput, with H200's batch. Not yet run."""

compile = True  # noqa: A001 - an option's name
train_batch_size = 8
gradient_accumulation_steps = 1
max_steps = 1_200_000 * 4  # a quarter of the suite's batch
lr_decay = 1_200_000 * 4
lr_warmup = 512 * 4
