"""One card, for throughput."""

from config_common import *

gradient_accumulation_steps = 16
