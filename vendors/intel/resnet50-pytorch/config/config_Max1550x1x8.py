"""To the target: a global batch of 2048. Not yet run."""

from config_common import *

learning_rate = 0.8
