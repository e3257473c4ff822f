"""A mixture of 0.96 million parameters on the bytes of real text, which it learns on one CPU core in half a minute."""

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
intermediate_size = 128
num_experts = 8
experts_per_token = 2
attention_window = 32
rope_factor = 1.0
init_std = 0.06  # for a width of 128; 0.008 is for a width of 2880
balance_factor = 0.01  # without it an expert gets up to 3.7 times the mean
max_expert_load = 3.0  # 4 is possible; after 100 steps an expert gets up to 2.3
loss_chunk = 512

train_batch_size = 8
eval_batch_size = 32
max_steps = 250
learning_rate = 3e-3
lr_warmup = 50  # a shorter warm-up scatters
lr_decay = 250
precision = "fp32"
checkpoint_activations = False
parallel = "ddp"
num_workers = 0

eval_samples = 40 * 8 * 128
eval_at_start = True
