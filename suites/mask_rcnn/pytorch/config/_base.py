"""Mask R-CNN on COCO, with FlagPerf's hyper-parameters."""

# -- data ------------------------------------------------------------------------------------------------
dataset = "coco"  # coco or scenes (included)
train_data = "train2017"
eval_data = "val2017"
init_checkpoint = "checkpoint/resnet50.pth"
num_classes = 91  # with the background; COCO numbers its 80 categories up to 90
min_size = 800  # of the shorter side
max_size = 1333  # of the longer side
shapes = [(800, 1088), (1088, 800), (800, 1216), (1216, 800), (800, 1344), (1344, 800)]  # of batches
max_boxes = 100  # of a picture
masks = True
mask_size = 112  # points along a side of a mask, which covers its box

# -- model -----------------------------------------------------------------------------------------------
layers = [3, 4, 6, 3]  # bottleneck blocks of each stage
width_per_group = 64  # channels of the first stage's 3x3 convolutions
expansion = 4  # output channels of a block, relative to its stage
norm = "frozen"  # or "group"
trainable_layers = 3  # stages of the backbone, from the last; 5: all
stages = [1, 2, 3, 4]  # of the backbone, for the pyramid; it has one level more
fpn_channels = 256
anchor_sizes = [32, 64, 128, 256, 512]  # of each level of the pyramid
train_proposals = 2000  # of each picture
eval_proposals = 1000
anchor_samples = 256  # anchors of each picture in the loss
box_samples = 512  # proposals of each picture in the loss
pool_size = 7
head_width = 1024
mask_pool_size = 14
mask_layers = [256, 256, 256, 256]  # channels of the convolutions for masks

# -- training ----------------------------------------------------------------------------------------------
train_batch_size = 16
eval_batch_size = 16
max_epochs = 26
optimizer = "sgd"
learning_rate = 0.16
momentum = 0.9
weight_decay = 1e-4
decay_vectors = True  # as in FlagPerf
lr_schedule = "milestones"
lr_unit = "epochs"
lr_milestones = [[16, 0.1], [22, 0.01]]
lr_warmup = 1000
lr_warmup_unit = "steps"
lr_warmup_from = 0.001

# -- speed -------------------------------------------------------------------------------------------------
num_workers = 4
cudnn_benchmark = False  # batches have several shapes
log_freq = 100
