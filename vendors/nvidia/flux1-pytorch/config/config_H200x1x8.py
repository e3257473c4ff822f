"""To the target with a batch of 512 on eight devices. Not yet run."""

from config_common import *

train_batch_size = 16  # 141 GiB hold the activations of 16 pictures, also without compiling
gradient_accumulation_steps = 4
