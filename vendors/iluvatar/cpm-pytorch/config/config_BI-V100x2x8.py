train_batch_size = 128
eval_batch_size = 128
max_steps = 2000
lr_warmup = max_steps // 5
lr_decay = max_steps + lr_warmup
eval_steps = 10  # 20,000 sequences
checkpoint_activations = True
