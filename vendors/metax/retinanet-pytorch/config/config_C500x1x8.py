from config_common import *

train_batch_size = 24
eval_batch_size = 24
learning_rate = 0.04
seed = 192
