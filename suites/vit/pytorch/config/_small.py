"""A ViT of 0.1 million parameters on handwritten digits: converges on one CPU core in seconds."""

dataset = "digits"
image_size = 16
resize_size = 16
num_classes = 10
mixup = 0.0
cutmix = 0.0
repeats = 1

patch_size = 4
embed_dim = 64
depth = 2
num_heads = 4

train_batch_size = 64
eval_batch_size = 180
gradient_accumulation_steps = 1
max_epochs = None
max_steps = 400
learning_rate = 6e-3
weight_decay = 0.05
label_smoothing = 0.1
lr_unit = "steps"
lr_warmup = 30
precision = "fp32"

num_workers = 0
log_freq = 5
eval_samples = 960  # less than half of the bound of not_too_early (reference/small.json)
