train_batch_size = 128
eval_batch_size = 128
learning_rate = 2e-3
eval_steps = 20  # 20,000 sequences
