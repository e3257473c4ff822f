"""A Mask R-CNN of 0.2 million parameters on scenes of digits: converges on one CPU core in seconds."""

dataset = "scenes"
init_checkpoint = None
num_classes = 4
min_size = 64
max_size = 64
shapes = [(64, 64)]
max_boxes = 3
mask_size = 28

layers = [1, 1, 1, 1]
width_per_group = 16
expansion = 1
norm = "group"
trainable_layers = 5
stages = [1, 2]
fpn_channels = 32
anchor_sizes = [14, 20, 28]
train_proposals = 64
eval_proposals = 32
anchor_samples = 64
box_samples = 32
pool_size = 5
head_width = 128
mask_pool_size = 10
mask_layers = [32, 32]

train_batch_size = 8
eval_batch_size = 16
max_epochs = None
max_steps = 200
optimizer = "adamw"
learning_rate = 4e-3
weight_decay = 1e-4
max_grad_norm = 5.0
lr_schedule = "cosine"
lr_milestones = None
lr_unit = "steps"
lr_warmup = 20
lr_warmup_from = 0.0

channels_last = True
num_workers = 0
log_freq = 5
eval_samples = 160  # less than half of the bound of not_too_early (reference/small.json)
