"""To the target with MLPerf's smallest batch, which needs the fewest sequences. Not yet run."""

from config_common import *

train_batch_size = 1  # 80 GiB hold the kept activations of one sequence
gradient_accumulation_steps = 2
