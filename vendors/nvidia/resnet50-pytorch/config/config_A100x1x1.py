"""One card, for throughput: to the target it would train for two days."""

from config_common import *

train_batch_size = 256
learning_rate = 0.8
