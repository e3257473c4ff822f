"""Two hosts of eight cards, to the target. Not yet run."""

from config_common import *

train_batch_size = 384
eval_batch_size = 384
