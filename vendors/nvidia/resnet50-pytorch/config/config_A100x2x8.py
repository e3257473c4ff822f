"""Two hosts of eight cards, to the target: a global batch of 4096. Not yet run."""

from config_common import *

train_batch_size = 256
learning_rate = 0.8
