"""One device, for throughput. Not yet run."""

from config_common import *

checkpoint_activations = False
train_batch_size = 24
eval_batch_size = 24
max_steps = 1388270 * 4 // train_batch_size
eval_steps = 600 * 8 * 4 // train_batch_size
