"""To the target with a batch of 512 on eight devices. Not yet run."""

from config_common import *

train_batch_size = 8  # 80 GiB hold the activations of eight pictures
gradient_accumulation_steps = 8
