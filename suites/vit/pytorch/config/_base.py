"""ViT-B/16 on ImageNet, with torchvision's recipe as FlagPerf uses it; the learning rate follows epochs."""

# -- data ------------------------------------------------------------------------------------------------
dataset = "imagenet"  # imagenet (folders) or digits (included)
train_data = "train"
eval_data = "val"
image_size = 224
resize_size = 256  # the shorter side before evaluation crops the middle image_size
num_classes = 1000
augment = "randaugment"
mixup = 0.2
cutmix = 1.0
repeats = 3

# -- model -----------------------------------------------------------------------------------------------
patch_size = 16
embed_dim = 768
depth = 12
num_heads = 12
weight_init = "jax"  # timm's name of the original initial weights: the head begins with zeros

# -- training ----------------------------------------------------------------------------------------------
train_batch_size = 256
eval_batch_size = 256
gradient_accumulation_steps = 2
max_epochs = 300
optimizer = "adamw"
learning_rate = 3e-3
weight_decay = 0.3
decay_vectors = True  # as in FlagPerf
max_grad_norm = 1.0
label_smoothing = 0.11
lr_schedule = "cosine"
lr_unit = "epochs"
lr_warmup = 30
lr_warmup_from = 0.033
precision = "fp16"

# -- speed -------------------------------------------------------------------------------------------------
num_workers = 16
log_freq = 10
