"""One H100, for throughput: half of an H200's sequences."""

from config_hopper import *

train_batch_size = 128
eval_batch_size = 128
max_steps = 8000
lr_warmup = max_steps // 5
lr_decay = max_steps + lr_warmup
eval_steps = 157  # 20,000 sequences
