"""To the target, with the batch and the learning rate of 1x8 on A100. Not yet run."""

from config_hopper import *
