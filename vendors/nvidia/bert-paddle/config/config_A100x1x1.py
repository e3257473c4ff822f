"""One card, for throughput."""

from config_common import *

max_steps = 10_000_000
lr_decay = 10_000_000
max_samples = 450_000_000
