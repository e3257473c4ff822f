"""One card, for throughput."""

from config_common import *

train_batch_size = 256
eval_batch_size = 256
learning_rate = 0.36
