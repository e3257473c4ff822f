"""A CPM of 0.15 million parameters on generated questions, which it learns to answer on one CPU core in seconds."""

dataset = "questions"
train_data = None
eval_data = None
tokenizer = None
init_checkpoint = None
train_questions = 4500
eval_questions = 500
seq_length = 19

vocab_size = 33
positions = 19
hidden_size = 64
num_layers = 3
num_attention_heads = 4
hidden_dropout = 0.0
attention_dropout = 0.0
init_std = 0.06
embedding_init_std = 0.1

train_batch_size = 64
eval_batch_size = 250
max_steps = 300
seed = 42
learning_rate = 4e-3
beta2 = 0.98
lr_warmup = 25
lr_decay = 300
lr_schedule = "cosine"
precision = "fp32"
num_workers = 0

eval_steps = None
eval_samples = 1600
eval_at_start = True
log_freq = 10
