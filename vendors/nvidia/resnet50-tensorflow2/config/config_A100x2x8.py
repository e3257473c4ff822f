"""Two hosts of eight cards, to the target. Not yet run."""

from config_common import *

learning_rate = 0.8
