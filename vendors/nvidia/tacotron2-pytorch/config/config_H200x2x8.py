"""Two hosts of eight cards, to the target. Not yet run."""

from config_hopper import *
