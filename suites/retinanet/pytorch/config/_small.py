"""A RetinaNet of 0.1 million parameters on scenes of digits: converges on one CPU core in seconds."""

dataset = "scenes"
init_checkpoint = None
num_classes = 4
min_size = 64
max_size = 64
shapes = [(64, 64)]
max_boxes = 3

layers = [1, 1, 1, 1]
width_per_group = 16
expansion = 1
norm = "group"
trainable_layers = 5
stages = [1]
fpn_channels = 32
anchor_sizes = [12, 16, 24]
head_layers = 2
head_deviation = 0.08  # with 32 channels 0.01 would take the scores to 0
prior_probability = 0.1

train_batch_size = 8
eval_batch_size = 16
max_epochs = None
max_steps = 150
optimizer = "adamw"
learning_rate = 4e-3
weight_decay = 1e-4
max_grad_norm = 5.0
lr_schedule = "cosine"
lr_milestones = None
lr_unit = "steps"
lr_warmup = 15
lr_warmup_from = 0.0

channels_last = True
num_workers = 0
log_freq = 5
eval_samples = 160  # less than half of the bound of not_too_early (reference/small.json)
