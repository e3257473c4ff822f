from config_common import *

train_batch_size = 8
eval_batch_size = 8
