"""Eight cards, to the target."""

from config_common import *

eval_batch_size = 256
expected_time_s = 68451  # FlagPerf's published e2e_time; it reports 68.58 %
