"""One device, for throughput. Not yet run."""

from config_common import *

checkpoint_activations = "selective"
train_batch_size = 2
gradient_accumulation_steps = 1
max_steps = 1_200_000 * 16  # the suite's batch is 16 times as large
lr_decay = 1_200_000 * 16
lr_warmup = 512 * 16
