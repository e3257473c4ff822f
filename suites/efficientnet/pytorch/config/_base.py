"""EfficientNetV2-S on ImageNet, with the hyper-parameters of FlagPerf's configs; the learning rate follows epochs."""

# -- data ------------------------------------------------------------------------------------------------
dataset = "imagenet"  # imagenet (folders) or digits (included)
train_data = "train"
eval_data = "val"
image_size = 300
eval_size = 384
resize_size = 384  # the shorter side before evaluation crops the middle eval_size
num_classes = 1000
augment = "trivialaugment"
erase = 0.1
mixup = 0.2
cutmix = 1.0
repeats = 4

# -- model -----------------------------------------------------------------------------------------------
stem_channels = 24
stages = [  # kind of the blocks, expansion, stride of the first block, channels, blocks
    ["fused", 1, 1, 24, 2],
    ["fused", 4, 2, 48, 4],
    ["fused", 4, 2, 64, 4],
    ["depthwise", 4, 2, 128, 6],
    ["depthwise", 6, 1, 160, 9],
    ["depthwise", 6, 2, 256, 15],
]
last_channels = 1280
dropout = 0.2
stochastic_depth = 0.2  # share of samples that skip the last block; it rises from 0 at the first block

# -- training ----------------------------------------------------------------------------------------------
train_batch_size = 128
eval_batch_size = 128
max_epochs = 600
optimizer = "sgd"
learning_rate = 0.5
momentum = 0.9
weight_decay = 2e-5
decay_vectors = True  # biases too, as in FlagPerf
no_decay = ["features.0.1.", "features.7.1.", "block.0.1.", "block.1.1.", "block.3.1."]  # batch normalization
label_smoothing = 0.1
lr_schedule = "cosine"
lr_unit = "epochs"
lr_warmup = 5
lr_warmup_from = 0.01

# -- speed -------------------------------------------------------------------------------------------------
num_workers = 16
log_freq = 100
