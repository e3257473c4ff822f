max_steps = 60000
lr_warmup = max_steps // 5
lr_decay = max_steps + lr_warmup
eval_steps = 625  # 20,000 sequences
