"""To the target with the suite's batch. Not yet run."""

from config_common import *

checkpoint_activations = "selective"
train_batch_size = 2
gradient_accumulation_steps = 2
