"""What the shapes of many H100 or H200 share: the A100 configs' global batch and schedule, in bf16 and compiled.

A global batch of 96 sequences a card is what an A100 does in four micro-steps of 24.
"""

from config_common import *

precision = "bf16"
compile = True  # noqa: A001 - an option's name
