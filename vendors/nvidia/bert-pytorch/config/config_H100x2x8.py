"""To the target, with the steps and the learning rate of 2x8 on A100. Not yet run."""

from config_hopper import *

train_batch_size = 48
eval_batch_size = 48
gradient_accumulation_steps = 2
max_steps = 20000 // 4
lr_decay = 20000
