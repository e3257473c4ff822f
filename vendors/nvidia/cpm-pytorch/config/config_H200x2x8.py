"""To the target, with the batch and the learning rate of 2x8 on A100. Not yet run."""

from config_hopper import *

train_batch_size = 192
eval_batch_size = 192
max_steps = 2000
lr_warmup = max_steps // 5
lr_decay = max_steps + lr_warmup
eval_steps = 7  # 20,000 sequences
