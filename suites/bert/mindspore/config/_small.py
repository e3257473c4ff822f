"""A small BERT on the characters of Wikipedia text: converges on one CPU core within a minute (README.md)."""

# the text is in small/; data_dir is not used
train_data = None
eval_data = None
init_checkpoint = None

vocab_size = 33  # [PAD] [CLS] [SEP] [MASK], a to z, full stop, comma, space
hidden_size = 64
num_hidden_layers = 2
num_attention_heads = 4
intermediate_size = 256
initializer_range = 0.1  # 0.02 is for a width of 1024; with it, narrow layers learn only the frequencies of characters
hidden_dropout_prob = 0.0
attention_probs_dropout_prob = 0.0

max_seq_length = 24
max_predictions_per_seq = 4
num_eval_samples = 2048

train_batch_size = 64
eval_batch_size = 256
max_steps = 700
max_samples = None  # max_steps only
optimizer = "adamw"
learning_rate = 4e-3
max_grad_norm = None
lr_schedule = "cosine"
lr_warmup = 20
eval_samples = 3200  # less than half of the bound of not_too_early (reference/small.json)
