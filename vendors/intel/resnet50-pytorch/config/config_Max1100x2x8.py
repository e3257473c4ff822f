"""To the target: a global batch of 4096. Not yet run."""

from config_common import *

learning_rate = 1.6
