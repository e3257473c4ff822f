"""BERT-large, second phase of pretraining (sequences of 512) from the phase-1 checkpoint, with PyTorch's recipe.

ais-bench's workload publishes its accuracy, but not its hyper-parameters.
"""

# -- paths, relative to data_dir
train_data = "2048_shards_uncompressed"
eval_data = "eval_set_uncompressed"
init_checkpoint = "ms_bert_large.ckpt"

# -- the model: bert-large-uncased
vocab_size = 30522  # rounded up to a multiple of 8 in the model
hidden_size = 1024
num_hidden_layers = 24
num_attention_heads = 16
intermediate_size = 4096
hidden_dropout_prob = 0.1
attention_probs_dropout_prob = 0.1
initializer_range = 0.02

# -- the data
max_seq_length = 512
max_predictions_per_seq = 76
num_eval_samples = 10000

# -- training
train_batch_size = 18
eval_batch_size = 128
max_steps = 1536
max_samples = 14_000_000
optimizer = "lamb"
learning_rate = 4e-5
weight_decay = 0.01
beta1 = 0.9
beta2 = 0.999
epsilon = 1e-6
max_grad_norm = 1.0
lr_schedule = "linear"
lr_warmup = 15  # one hundredth of max_steps
eval_steps = 500
