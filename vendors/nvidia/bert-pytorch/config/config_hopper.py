"""Values of the shapes with several H100 or H200: the A100 configs' global batch and schedule, in bf16 and compiled.

An optimizer step has 96 sequences per card, as the four micro-steps of 24 on A100.
"""

from config_common import *

precision = "bf16"
compile = True  # noqa: A001 - an option's name
