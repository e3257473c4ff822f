from config_common import *

train_batch_size = 16
eval_batch_size = 16
learning_rate = 0.08
