from config_common import *

train_batch_size = 4
eval_batch_size = 4
max_steps = 20000 // (train_batch_size * 16)
eval_steps = 600 * 8 * 4 // (train_batch_size * 16)
throughput_only = True
