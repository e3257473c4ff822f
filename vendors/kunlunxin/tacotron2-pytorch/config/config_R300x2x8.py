from config_common import *

train_batch_size = 96
eval_batch_size = 96
