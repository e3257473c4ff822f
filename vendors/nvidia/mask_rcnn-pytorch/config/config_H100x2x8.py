"""Two hosts of eight cards, to the target. Not yet run."""

from config_hopper import *

train_batch_size = 8
