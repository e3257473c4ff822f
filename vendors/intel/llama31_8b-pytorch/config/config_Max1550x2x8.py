"""To the target with MLPerf's points for a batch of 32. Not yet run."""

from config_common import *

checkpoint_activations = "selective"
train_batch_size = 1
gradient_accumulation_steps = 2
learning_rate = 8e-4
lr_warmup = 4096 // 32
