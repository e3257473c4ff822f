"""An EfficientNet of 0.1 million parameters on handwritten digits: converges on one CPU core in seconds."""

dataset = "digits"
image_size = 16
eval_size = 16
resize_size = 16
num_classes = 10
augment = None
erase = 0.0
mixup = 0.0
cutmix = 0.0
repeats = 1

stem_channels = 16
stages = [
    ["fused", 1, 1, 16, 1],
    ["fused", 4, 2, 32, 2],
    ["depthwise", 4, 2, 48, 2],
]
last_channels = 128
dropout = 0.1

train_batch_size = 64
eval_batch_size = 180
max_epochs = None
max_steps = 150
optimizer = "adamw"
learning_rate = 5e-3
weight_decay = 0.05
no_decay = ["features.0.1.", "features.4.1.", "block.0.1.", "block.1.1.", "block.3.1."]
lr_unit = "steps"
lr_warmup = 15
lr_warmup_from = 0.0

channels_last = True
num_workers = 0
log_freq = 5
eval_samples = 960  # less than half of the bound of not_too_early (reference/small.json)
