"""To the target with MLPerf's smallest batch, which needs the fewest sequences. Not yet run."""

from config_common import *

checkpoint_activations = True  # 80 GiB do not hold the activations of two sequences
