"""One H200, for throughput: an estimate of the sequences that fit without activation checkpoints; bf16, compiled."""

precision = "bf16"
compile = True  # noqa: A001 - an option's name
checkpoint_activations = False
train_batch_size = 24  # 240 sequences
eval_batch_size = 24
max_steps = 1388270 * 4 // train_batch_size
eval_steps = 600 * 8 * 4 // train_batch_size
