"""To the target. FlagPerf reports 73.08 % with these values and mixed precision, less than the target of 75.5 %."""

from config_common import *

train_batch_size = 256
eval_batch_size = 256
learning_rate = 0.8
