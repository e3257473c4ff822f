train_batch_size = 64
eval_batch_size = 64
eval_steps = 1  # 512 sequences
