"""One device, for throughput. Not yet run."""

from config_common import *

learning_rate = 0.1
