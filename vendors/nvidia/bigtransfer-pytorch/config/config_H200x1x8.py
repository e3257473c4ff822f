"""Eight cards, to the target. Not yet run."""

from config_hopper import *

eval_batch_size = 64
