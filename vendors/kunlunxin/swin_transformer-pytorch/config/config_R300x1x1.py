from config_common import *

train_batch_size = 128
eval_batch_size = 128
