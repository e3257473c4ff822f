"""Eight cards, to the target."""

from config_common import *

expected_time_s = 1316  # FlagPerf's published e2e_time
