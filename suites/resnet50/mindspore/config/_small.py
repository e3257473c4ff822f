"""A ResNet of 0.5 million parameters on handwritten digits: converges on one CPU core in a minute."""

dataset = "digits"
image_size = 32
resize_size = 32
num_classes = 10

layers = [1, 1, 1, 1]
width_per_group = 16
expansion = 1

train_batch_size = 64
eval_batch_size = 180
max_epochs = None
max_steps = 150
optimizer = "adamw"
learning_rate = 2e-3
weight_decay = 0.05
label_smoothing = 0.1
lr_schedule = "cosine"
lr_unit = "steps"
lr_warmup = 15

num_workers = 0
log_freq = 5
eval_samples = 960  # less than half of the bound of not_too_early (reference/small.json)
