train_batch_size = 384
eval_batch_size = 384
learning_rate = 7e-4
max_steps = 10667
lr_warmup = max_steps // 5
lr_decay = max_steps + lr_warmup
eval_steps = 53  # 20,000 sequences
checkpoint_activations = True
