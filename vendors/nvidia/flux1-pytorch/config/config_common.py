"""Values of all shapes: compiled; MLPerf's smallest batch, 512 pictures, which needs the fewest of them."""

compile = True  # noqa: A001 - an option's name
learning_rate = 2e-4
lr_warmup = 1600
