from config_common import *

train_batch_size = 32
eval_batch_size = 32
learning_rate = 0.1
seed = 23333
