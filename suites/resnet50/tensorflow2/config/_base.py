"""ResNet-50 on ImageNet, with the hyper-parameters of FlagPerf's TensorFlow case; the learning rate follows epochs."""

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
train_batch_size = 128
eval_batch_size = 128
max_epochs = 90
max_samples = 115_305_030  # of 90 epochs
optimizer = "sgd"
learning_rate = 0.05  # 0.1 for each 256 images of a step: FlagPerf's for one card
momentum = 0.9
weight_decay = 2e-4  # FlagPerf's L2 term is 1e-4 times the square of the weights, so its gradient has the factor 2
label_smoothing = 0.1
lr_schedule = "milestones"
lr_unit = "epochs"
lr_warmup = 5
lr_milestones = [[30, 0.1], [60, 0.01], [80, 0.001]]

# -- speed -------------------------------------------------------------------------------------------------
num_workers = 4  # threads
log_freq = 100
