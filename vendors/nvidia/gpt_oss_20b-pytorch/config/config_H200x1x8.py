"""To the target with MLPerf's smallest batch, which needs the fewest sequences. Not yet run."""

from config_common import *

checkpoint_activations = False  # 141 GiB hold the activations of two sequences
