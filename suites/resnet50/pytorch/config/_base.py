"""ResNet-50 on ImageNet, with FlagPerf's hyper-parameters; the learning rate follows epochs."""

# -- data ------------------------------------------------------------------------------------------------
dataset = "imagenet"  # imagenet (folders) or digits (included)
train_data = "train"
eval_data = "val"
image_size = 224
resize_size = 256  # the shorter side before evaluation crops the middle image_size
num_classes = 1000

# -- model -----------------------------------------------------------------------------------------------
layers = [3, 4, 6, 3]  # bottleneck blocks of each stage
width_per_group = 64  # channels of the first stage's 3x3 convolutions
expansion = 4  # output channels of a block, relative to its stage

# -- training ----------------------------------------------------------------------------------------------
train_batch_size = 32
eval_batch_size = 32
max_epochs = 100
optimizer = "sgd"
learning_rate = 0.1
momentum = 0.9
weight_decay = 1e-4
decay_vectors = True  # as in FlagPerf
label_smoothing = 0.0
lr_schedule = "step"
lr_unit = "epochs"
lr_step = 30
lr_gamma = 0.1

# -- speed -------------------------------------------------------------------------------------------------
reader = "pillow"  # decodes on the host; "torchvision" or "dali" (NVIDIA DALI): on the device
num_workers = 4
log_freq = 100
