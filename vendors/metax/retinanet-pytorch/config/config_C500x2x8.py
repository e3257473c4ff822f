from config_common import *

train_batch_size = 22
eval_batch_size = 22
learning_rate = 0.02
seed = 101
