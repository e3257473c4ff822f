from config_common import *

max_steps = 1388270 * 4 // (train_batch_size * 8)
eval_steps = 600 * 8 * 4 // (train_batch_size * 8)
expected_time_s = 2763  # FlagPerf's published e2e_time
