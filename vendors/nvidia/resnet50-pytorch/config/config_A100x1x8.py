"""Eight cards, to the target: a global batch of 256."""

from config_common import *

train_batch_size = 32
learning_rate = 0.1
expected_time_s = 28661  # FlagPerf's published e2e_time; it reports 75.0 %
