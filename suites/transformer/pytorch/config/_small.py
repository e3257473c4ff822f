"""A small Transformer on sentences of a grammar, which it learns to translate in some seconds on one core."""

# -- data, generated from the seed by sentences.py ---------------------------------------------------------------
train_data = None
eval_data = None
text_model = None
bucket_lengths = [8, 12, 16]
train_sentences = 6000
eval_sentences = 200

# -- model ---------------------------------------------------------------------------------------------------
vocab_size = 151
width = 64
inner_width = 256
heads = 4
layers = 2
dropout = 0.0
attention_dropout = 0.0
inner_dropout = 0.0
max_positions = 40

# -- training ------------------------------------------------------------------------------------------------
train_batch_size = 36
samples_per_item = 16
max_epochs = None
max_samples = None
max_steps = 240
seed = 42
learning_rate = 3e-3
beta2 = 0.98
epsilon = 1e-8
lr_schedule = "cosine"
lr_warmup = 20

# -- evaluation ----------------------------------------------------------------------------------------------
eval_batch_size = 100
max_output_length = 30
eval_samples = 11520  # less than half of the bound of not_too_early (reference/small.json)
eval_at_start = True
log_freq = 20
