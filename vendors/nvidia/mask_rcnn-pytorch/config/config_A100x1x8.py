"""Eight cards, to the target."""

from config_common import *

expected_time_s = 14642  # FlagPerf's published e2e_time; it reports 0.376 and 0.336
