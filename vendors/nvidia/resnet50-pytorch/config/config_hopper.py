"""What the shapes of many H100 or H200 share: what makes them fast, and a learning rate of 0.1 for 256 images.

Such large batches want the warm-up of Goyal et al., "Accurate, Large Minibatch SGD" (2017), which the original lacks.
"""

vendor = "nvidia"
precision = "bf16"
channels_last = True
compile = True  # noqa: A001
cudnn_benchmark = True
train_batch_size = 256
eval_batch_size = 256
lr_warmup_epochs = 5
num_workers = 16
