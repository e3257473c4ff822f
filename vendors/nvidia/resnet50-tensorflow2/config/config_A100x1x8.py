"""Eight cards, to the target."""

from config_common import *

learning_rate = 0.4
expected_time_s = 18578  # FlagPerf's published e2e_time
