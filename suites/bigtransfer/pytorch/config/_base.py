"""BiT-M R152x2 fine-tuned on ImageNet, with FlagPerf's hyper-parameters; the learning rate follows steps."""

# -- data, relative to data_dir --------------------------------------------------------------------------
dataset = "imagenet"  # imagenet (folders) or digits (included)
train_data = "train"
eval_data = "val"
init_checkpoint = "backbone_weights/bigtransfer/BiT-M-R152x2.npz"
checkpoint_classes = 21843  # of ImageNet-21k; a file for other classes is refused
image_size = 480
resize_size = 512  # both sides of a training picture, before a random square of image_size is cut out
crop = "shifted"
pixel_mean = [0.5, 0.5, 0.5]
pixel_deviation = [0.5, 0.5, 0.5]
num_classes = 1000
mixup = 0.1

# -- model -----------------------------------------------------------------------------------------------
layers = [3, 8, 36, 3]  # blocks of each stage
channels = [256, 512, 1024, 2048]  # output channels of each stage, before width_factor
stem_channels = 64
width_factor = 2
norm_groups = 32

# -- training ----------------------------------------------------------------------------------------------
train_batch_size = 16
eval_batch_size = 16
max_steps = 10000
optimizer = "sgd"
learning_rate = 0.003
momentum = 0.9
weight_decay = 0.0
label_smoothing = 0.0
lr_schedule = "milestones"
lr_warmup = 500
lr_milestones = [[3000, 0.1], [6000, 0.01], [9000, 0.001]]

# -- speed -------------------------------------------------------------------------------------------------
num_workers = 8
reader = "pillow"  # decodes on the host; "torchvision": on the device
log_freq = 20
