"""To the target. Not yet run."""

from config_common import *

train_batch_size = 96
eval_batch_size = 96
gradient_accumulation_steps = 1
max_steps = 20000 // 4
lr_decay = 20000
