"""One H100, for throughput: four sequences fill its memory without computing activations again."""

compile = True  # noqa: A001 - an option's name
gradient_accumulation_steps = 1
max_steps = 1_200_000 * 8  # an eighth of the suite's batch
lr_decay = 1_200_000 * 8
lr_warmup = 512 * 8
