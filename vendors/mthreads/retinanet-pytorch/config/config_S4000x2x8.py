"""Not in FlagPerf; with the batch and the learning rate of 1x8."""

from config_common import *
