train_batch_size = 64
eval_batch_size = 64
max_steps = 32000
lr_warmup = max_steps // 5
lr_decay = max_steps + lr_warmup
eval_steps = 313  # 20,000 sequences
