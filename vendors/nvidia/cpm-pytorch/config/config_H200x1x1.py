"""One H200, for throughput: an estimate of the sequences that use most of its speed."""

from config_hopper import *

train_batch_size = 256
eval_batch_size = 256
