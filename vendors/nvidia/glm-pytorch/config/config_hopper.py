"""What the shapes of many H100 or H200 share: the A100 configs' batch and schedule, in bf16 and compiled."""

from config_common import *

precision = "bf16"
compile = True  # noqa: A001 - an option's name
checkpoint_activations = False  # 80 sequences a card, of the 240 that an H200 is reckoned to hold
