from config_common import *

train_batch_size = 128
eval_batch_size = 512
learning_rate = 0.0015
gradient_accumulation_steps = 4
