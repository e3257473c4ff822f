"""Eight cards, to the target. Not yet run."""

from config_hopper import *

train_batch_size = 8
learning_rate = 0.08
