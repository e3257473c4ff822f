"""A small GLM on generated questions, which it learns to answer in about ten seconds on one core."""

# -- data, generated from the seed by counts.py -------------------------------------------------------------------
train_data = None
eval_data = None
vocab_file = None
init_checkpoint = None
train_examples = 12000
eval_examples = 400
eval_pairs = 400  # pairs of numbers (of 2,556) for the evaluation only
max_seq_length = 24
max_answer_length = 3
max_candidates = 2  # the right candidate and a wrong candidate; evaluation has four
samples_per_item = max_candidates

# -- model ---------------------------------------------------------------------------------------------------
vocab_size = 53
hidden_size = 96
num_layers = 2
num_attention_heads = 4
hidden_dropout = 0.0
attention_dropout = 0.0
init_std = 0.06
embedding_init_std = 0.1
checkpoint_activations = False

# -- training ------------------------------------------------------------------------------------------------
train_batch_size = 64
eval_batch_size = 100
max_steps = 120
seed = 42
generative_weight = 1.0  # the model starts from random weights, not from a pretrained model
learning_rate = 3e-3
weight_decay = 0.01
beta2 = 0.98
lr_warmup = 20
lr_decay = 120
precision = "fp32"

# -- evaluation ----------------------------------------------------------------------------------------------
eval_samples = 1280  # less than half of the bound of not_too_early (reference/small.json)
eval_at_start = True
log_freq = 20
