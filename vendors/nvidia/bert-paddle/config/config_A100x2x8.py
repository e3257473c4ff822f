"""Two hosts of eight cards, to the target."""

from config_common import *
