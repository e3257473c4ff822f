train_batch_size = 192
eval_batch_size = 192
max_steps = 2000
lr_warmup = max_steps // 5
lr_decay = max_steps + lr_warmup
eval_steps = 7  # 20,000 sequences
checkpoint_activations = True  # 192 sequences need more than 40 GB without
