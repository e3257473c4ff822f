"""One H100, for throughput: half of an H200's sequences, an estimate of what its memory holds; bf16, compiled."""

precision = "bf16"
compile = True  # noqa: A001 - an option's name
train_batch_size = 64
eval_batch_size = 64
gradient_accumulation_steps = 1
learning_rate = 3.5e-4
lr_warmup = 0
max_steps = 90000
max_samples = 4_500_000  # as on A100
