"""CPM (medium) on STC, with FlagPerf's hyper-parameters for eight A100."""

# -- data, relative to data_dir ----------------------------------------------------------------------------
dataset = "stc"  # stc (files) or questions (generated)
train_data = "train.txt"
eval_data = "valid.txt"
tokenizer = "bpe_3w_new/chinese_vocab.model"
init_checkpoint = "cpm_model_states_medium.pt"
seq_length = 200  # tokens of a sample, with padding
synthetic_texts = 100_000  # of an epoch with --synthetic
train_questions = 0  # generated questions, for the small scale only
eval_questions = 0

# -- model -------------------------------------------------------------------------------------------------
vocab_size = 30000
positions = 1024  # rows of the table of positions
hidden_size = 1024
num_layers = 24
num_attention_heads = 16
hidden_dropout = 0.5
attention_dropout = 0.5
init_std = 0.02
embedding_init_std = 0.02

# -- training ----------------------------------------------------------------------------------------------
train_batch_size = 32
eval_batch_size = 32
max_steps = 4000
seed = 23333
optimizer = "adamw"
learning_rate = 5e-4
beta2 = 0.99
weight_decay = 0.05
lr_schedule = "linear"
lr_warmup = 800
lr_decay = 4800  # a fifth of the rate is left at step 4000
precision = "fp16"
num_workers = 2
init_timeout_s = 7200.0  # the first run encodes 4.4 million lines

# -- evaluation --------------------------------------------------------------------------------------------
eval_steps = 79  # 20,000 texts
eval_at_start = False
