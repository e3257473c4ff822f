"""One card, for throughput; a training to the target would take two days."""

from config_common import *

train_batch_size = 256
learning_rate = 0.8
