"""One card, for throughput."""

from config_common import *
