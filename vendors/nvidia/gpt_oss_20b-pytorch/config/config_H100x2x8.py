"""To the target with MLPerf's points for a batch of 32. Not yet run."""

from config_common import *

checkpoint_activations = True
learning_rate = 8e-4
