"""To the target with a batch of 512 on sixteen devices: a copy of the model on each host. Not yet run."""

from config_common import *

train_batch_size = 8
gradient_accumulation_steps = 4
parallel = {"shard": 8}
