from config_common import *

train_batch_size = 64
eval_batch_size = 64
learning_rate = 0.8
