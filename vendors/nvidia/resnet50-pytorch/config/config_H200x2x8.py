"""Two hosts of eight cards, to the target: a global batch of 4096. Not yet run."""

from config_hopper import *

learning_rate = 1.6
