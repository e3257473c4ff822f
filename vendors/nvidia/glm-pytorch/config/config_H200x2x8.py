"""To the target, with the steps and the learning rate of 2x8 on A100. Not yet run."""

from config_hopper import *

max_steps = 1388270 * 4 // (train_batch_size * 16)
eval_steps = 600 * 8 * 4 // (train_batch_size * 16)
