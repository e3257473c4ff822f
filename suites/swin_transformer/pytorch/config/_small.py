"""A Swin Transformer of 0.1 million parameters on handwritten digits: converges on one CPU core in seconds."""

dataset = "digits"
image_size = 16
resize_size = 16
num_classes = 10
mixup = 0.0
cutmix = 0.0

patch_size = 2
embed_dim = 32
depths = [2, 2]
num_heads = [2, 4]
window_size = 4
drop_path_rate = 0.0

train_batch_size = 64
eval_batch_size = 180
max_epochs = None
max_steps = 400
learning_rate = 4e-3
lr_batch = None
lr_unit = "steps"
lr_warmup = 50
precision = "fp32"

num_workers = 0
log_freq = 5
eval_samples = 960  # less than half of the bound of not_too_early (reference/small.json)
