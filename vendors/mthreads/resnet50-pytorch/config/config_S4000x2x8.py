"""Not in FlagPerf; with the batch and the learning rate of 1x8, as in its A100 configs."""

from config_common import *

train_batch_size = 256
eval_batch_size = 256
learning_rate = 0.8
