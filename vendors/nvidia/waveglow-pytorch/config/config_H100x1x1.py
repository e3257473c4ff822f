"""One H100, for throughput."""

from config_hopper import *

train_batch_size = 24
eval_batch_size = 24
log_freq = 20
throughput_steps = 100
timing_warmup_steps = 20
