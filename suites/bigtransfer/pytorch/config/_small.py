"""A Big Transfer network of 0.13 million parameters on handwritten digits: converges on one CPU core in seconds."""

dataset = "digits"
init_checkpoint = None
image_size = 32
resize_size = 32
crop = "area"
num_classes = 10
mixup = 0.0

layers = [1, 1, 1, 1]
channels = [32, 64, 128, 256]
stem_channels = 16
width_factor = 1
norm_groups = 8

train_batch_size = 64
eval_batch_size = 180
max_steps = 150
optimizer = "adamw"
learning_rate = 2e-3
weight_decay = 0.05
label_smoothing = 0.1
lr_schedule = "cosine"
lr_warmup = 15
lr_milestones = None

channels_last = True
num_workers = 0
log_freq = 5
eval_samples = 640  # less than half of the bound of not_too_early (reference/small.json)
