"""Values of the shapes with several H100 or H200: the A100 configs' batch and schedule, in bf16 and compiled."""

from config_common import *

precision = "bf16"
compile = True  # noqa: A001 - an option's name
checkpoint_activations = False  # 80 sequences per card; an H200 holds about 240
