"""One H100, for throughput."""

from config_hopper import *

log_freq = 20
throughput_steps = 100
timing_warmup_steps = 20
