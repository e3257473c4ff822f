"""Values of all shapes: 256 images a card in bf16, compiled, and a learning rate of 0.1 per 256 images.

Large global batches need the warm-up of Goyal et al., "Accurate, Large Minibatch SGD" (2017).
"""

precision = "bf16"
compile = True  # noqa: A001 - an option's name
train_batch_size = 256
eval_batch_size = 256
lr_warmup = 5
num_workers = 16
