"""To the target. Not yet run."""

from config_common import *

train_batch_size = 48
eval_batch_size = 48
gradient_accumulation_steps = 2
max_steps = 20000 // 4
lr_decay = 20000
