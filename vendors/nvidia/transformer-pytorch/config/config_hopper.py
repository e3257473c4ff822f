"""Values of all shapes on H100 and H200: the A100 configs' batch, in bf16 and compiled."""

from config_common import *

precision = "bf16"
compile = True  # noqa: A001 - an option's name
