"""MobileNetV2 on ImageNet, with FlagPerf's hyper-parameters; the learning rate follows epochs."""

# -- data ------------------------------------------------------------------------------------------------
dataset = "imagenet"  # imagenet (folders) or digits (included)
train_data = "train"
eval_data = "val"
image_size = 224
resize_size = 256  # the shorter side before evaluation crops the middle image_size
num_classes = 1000

# -- model -----------------------------------------------------------------------------------------------
width = 1.0  # of the channels
stages = [  # expansion, channels, blocks, stride of the first block
    [1, 16, 1, 1],
    [6, 24, 2, 2],
    [6, 32, 3, 2],
    [6, 64, 4, 2],
    [6, 96, 3, 1],
    [6, 160, 3, 2],
    [6, 320, 1, 1],
]
dropout = 0.2

# -- training ----------------------------------------------------------------------------------------------
train_batch_size = 32
eval_batch_size = 32
max_epochs = 300
optimizer = "sgd"
learning_rate = 0.045
momentum = 0.9
weight_decay = 4e-5
decay_vectors = True  # as in FlagPerf
label_smoothing = 0.0
lr_schedule = "step"
lr_unit = "epochs"
lr_step = 1
lr_gamma = 0.98

# -- speed -------------------------------------------------------------------------------------------------
reader = "pillow"  # decodes on the host; "torchvision" or "dali" (NVIDIA DALI): on the device
num_workers = 16
log_freq = 100
