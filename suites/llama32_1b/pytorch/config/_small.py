"""A Llama of 0.43 million parameters on the bytes of real text, which it learns on one CPU core in half a minute."""

train_data = None
eval_data = None
eval_sequences = 128
max_seq_length = 128
samples_per_item = 128

vocab_size = 256
num_layers = 2
hidden_size = 128
num_heads = 4
num_kv_heads = 2
head_size = 32
intermediate_size = 352
init_std = 0.06  # for a width of 128; 0.02 is for a width of 4096
loss_chunk = 512

train_batch_size = 8
eval_batch_size = 32
gradient_accumulation_steps = 1
max_steps = 250
learning_rate = 3e-3
lr_warmup = 50  # a shorter warm-up scatters
lr_decay = 250
precision = "fp32"
num_workers = 0

eval_samples = 32 * 8 * 128
eval_at_start = True
