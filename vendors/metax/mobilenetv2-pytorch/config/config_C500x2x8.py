from config_common import *

train_batch_size = 640
eval_batch_size = 640
learning_rate = 0.72
