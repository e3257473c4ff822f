"""Eight cards, to the target. Not yet run."""

from config_hopper import *

train_batch_size = 512
eval_batch_size = 512
gradient_accumulation_steps = 1
