"""Swin-T on ImageNet, with FlagPerf's hyper-parameters; the learning rate follows epochs."""

# -- data ------------------------------------------------------------------------------------------------
dataset = "imagenet"  # imagenet (folders) or digits (included)
train_data = "train"
eval_data = "val"
image_size = 224
resize_size = 256  # the shorter side before evaluation crops the middle image_size
num_classes = 1000
interpolation = "bicubic"
augment = "rand-m9-mstd0.5-inc1"
erase = 0.25
erase_noise = True
mixup = 0.8
cutmix = 1.0

# -- model -----------------------------------------------------------------------------------------------
patch_size = 4
embed_dim = 96  # of the first stage; each further stage has twice as many
depths = [2, 2, 6, 2]  # blocks of each stage
num_heads = [3, 6, 12, 24]
window_size = 7
drop_path_rate = 0.2  # of the last block; it rises from 0
fused_attention = True  # one kernel, with a mask for each window and head; else single operations, which broadcast it

# -- training ----------------------------------------------------------------------------------------------
train_batch_size = 256
eval_batch_size = 256
max_epochs = 300
optimizer = "adamw"
learning_rate = 5e-4
lr_batch = 512  # learning_rate is that of so many images per step, and grows with them; None: that of any number
weight_decay = 0.05
no_decay = ["relative_position_bias_table"]
max_grad_norm = 5.0
label_smoothing = 0.1
lr_schedule = "cosine"
lr_unit = "epochs"
lr_warmup = 20
lr_warmup_from = 1e-3
lr_floor = 0.01
precision = "fp16"

# -- speed -------------------------------------------------------------------------------------------------
num_workers = 8
log_freq = 10
