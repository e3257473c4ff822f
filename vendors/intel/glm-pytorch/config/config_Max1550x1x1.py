"""One device, for throughput. Not yet run."""

from config_common import *

train_batch_size = 16
eval_batch_size = 16
max_steps = 1388270 * 4 // train_batch_size
eval_steps = 600 * 8 * 4 // train_batch_size
