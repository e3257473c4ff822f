"""One H200, for throughput."""

from config_hopper import *

train_batch_size = 64
eval_batch_size = 64
learning_rate = 0.0015
max_steps = 20000
throughput_steps = 100
timing_warmup_steps = 20
