"""One card, for throughput."""

from config_common import *

max_steps = 80000
