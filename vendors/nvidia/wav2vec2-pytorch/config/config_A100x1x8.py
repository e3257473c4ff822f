"""Eight cards, to the target: three to four days, FlagPerf writes."""

from config_common import *
