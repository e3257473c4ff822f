"""Eight cards, to the target."""

from config_common import *

eval_batch_size = 512
expected_time_s = 73258  # FlagPerf's published e2e_time
