"""One card, for throughput."""

from config_common import *

train_batch_size = 384
eval_batch_size = 384
