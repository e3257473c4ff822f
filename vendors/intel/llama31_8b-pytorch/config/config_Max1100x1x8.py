"""To the target with MLPerf's smallest batch, which needs the fewest sequences. Not yet run."""

from config_common import *

checkpoint_activations = True
train_batch_size = 1
gradient_accumulation_steps = 2
learning_rate = 4e-4
lr_warmup = 256 // 16
