"""Two hosts of eight cards, for throughput. Not yet run."""

from config_hopper import *

learning_rate = 1.6
throughput_only = True
