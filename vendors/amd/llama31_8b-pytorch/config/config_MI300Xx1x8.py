"""To the target with MLPerf's smallest batch, which needs the fewest sequences. Not yet run."""

from config_common import *

train_batch_size = 2
gradient_accumulation_steps = 1
learning_rate = 4e-4
lr_warmup = 256 // 16
