"""Two hosts of eight cards, to the target. Not yet run."""

from config_hopper import *

eval_batch_size = 512
gradient_accumulation_steps = 1
