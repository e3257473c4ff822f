"""To the target. Not yet run."""

from config_common import *

train_batch_size = 24
eval_batch_size = 24
gradient_accumulation_steps = 4
max_steps = 30000 // 4
lr_decay = 30000
