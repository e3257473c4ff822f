"""One H100, for throughput: half of an H200's sequences, an estimate of what its memory holds; bf16, compiled."""

precision = "bf16"
compile = True  # noqa: A001 - an option's name
checkpoint_activations = False
train_batch_size = 12  # 120 sequences
eval_batch_size = 12
max_steps = 1388270 * 4 // train_batch_size
eval_steps = 600 * 8 * 4 // train_batch_size
