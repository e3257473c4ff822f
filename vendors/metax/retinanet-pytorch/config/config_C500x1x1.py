from config_common import *

train_batch_size = 40
eval_batch_size = 40
learning_rate = 0.01
