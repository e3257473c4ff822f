"""Eight cards, to the target."""

from config_common import *

expected_time_s = 10719  # FlagPerf's published e2e_time
