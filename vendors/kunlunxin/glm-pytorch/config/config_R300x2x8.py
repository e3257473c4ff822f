from config_common import *

train_batch_size = 4
eval_batch_size = 4
max_steps = 1388270 * 4 // (train_batch_size * 16)
eval_steps = 600 * 8 * 4 // (train_batch_size * 16)
