"""A MobileNetV2 of 0.1 million parameters on handwritten digits: converges on one CPU core in seconds."""

dataset = "digits"
image_size = 16
resize_size = 16
num_classes = 10

width = 0.5
stages = [[1, 16, 1, 1], [6, 24, 2, 1], [6, 32, 2, 2], [6, 64, 2, 2], [6, 96, 1, 1]]
dropout = 0.1

train_batch_size = 64
eval_batch_size = 180
max_epochs = None
max_steps = 200
optimizer = "adamw"
learning_rate = 3e-3
weight_decay = 0.05
label_smoothing = 0.1
lr_schedule = "cosine"
lr_unit = "steps"
lr_warmup = 15

channels_last = True
num_workers = 0
log_freq = 5
eval_samples = 960
