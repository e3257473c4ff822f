"""One H100, for throughput."""

from config_hopper import *

train_batch_size = 32
eval_batch_size = 32
learning_rate = 0.00075
max_steps = 40000
throughput_steps = 100
timing_warmup_steps = 20
