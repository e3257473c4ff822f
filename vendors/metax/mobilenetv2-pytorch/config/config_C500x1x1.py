from config_common import *

train_batch_size = 704
eval_batch_size = 704
learning_rate = 0.72
