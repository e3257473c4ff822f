"""To the target with FlagPerf's batch. Not yet run."""

from config_common import *

train_batch_size = 8
eval_batch_size = 8
max_steps = 1388270 * 4 // (train_batch_size * 8)
eval_steps = 600 * 8 * 4 // (train_batch_size * 8)
