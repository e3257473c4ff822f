"""Eight cards, to the target: a global batch of 2048. Not yet run."""

from config_hopper import *

learning_rate = 0.8
