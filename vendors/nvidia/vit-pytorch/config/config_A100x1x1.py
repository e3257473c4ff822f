"""One card, for throughput."""

from config_common import *

eval_batch_size = 512
