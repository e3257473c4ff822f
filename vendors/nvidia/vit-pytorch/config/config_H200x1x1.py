"""One H200, for throughput."""

from config_hopper import *

eval_batch_size = 512
learning_rate = 0.0001875
gradient_accumulation_steps = 1
log_freq = 20
throughput_steps = 100
timing_warmup_steps = 20
