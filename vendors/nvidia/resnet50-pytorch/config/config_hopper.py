"""Values of the shapes with several H100 or H200: settings for speed, and a learning rate of 0.1 per 256 images.

Such large batches need the warm-up of Goyal et al., "Accurate, Large Minibatch SGD" (2017), which the original does
not have.
"""

vendor = "nvidia"
precision = "bf16"
channels_last = True
compile = True  # noqa: A001
cudnn_benchmark = True
train_batch_size = 256
eval_batch_size = 256
lr_warmup = 5
num_workers = 16
