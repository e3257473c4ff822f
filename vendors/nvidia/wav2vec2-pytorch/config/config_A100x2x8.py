"""Two hosts of eight cards, to the target. Not yet run."""

from config_common import *

gradient_accumulation_steps = 1
