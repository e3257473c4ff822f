"""GLM-large (blank-filling) on ReCoRD: the reference. What is not here has the value of flagperf_driver/defaults.py."""

vendor = ""
data_dir = ""

# -- data, relative to data_dir ------------------------------------------------------------------------------
# Either the encoded files of the original, or SuperGLUE's train.jsonl and val.jsonl; then vocab_file is needed too.
train_data = "ReCoRD/glm_train_eval_hdf5_sparse/train_hdf5/train_sparse.hdf5"
eval_data = "ReCoRD/glm_train_eval_hdf5_sparse/eval_hdf5/eval_sparse.hdf5"
vocab_file = "vocab.txt"  # one token a line, of the uncased wordpiece vocabulary of 30,522
init_checkpoint = "blocklm-large-blank/200000/mp_rank_00_model_states.pt"
max_seq_length = 512
max_answer_length = 16  # tokens of a candidate, its end included; a longer one is judged by these
max_candidates = 10  # of an example in training; evaluation takes all, so many at a time
samples_per_item = max_candidates  # each answer of a question is a sequence
synthetic_examples = 256  # per card, with --synthetic
train_examples = 0  # made questions: only the small scale has them
eval_examples = 0
eval_pairs = 0

# -- model ---------------------------------------------------------------------------------------------------
vocab_size = 30592
hidden_size = 1024
num_layers = 24
num_attention_heads = 16
hidden_dropout = 0.1
attention_dropout = 0.1
init_std = 0.02
embedding_init_std = 0.02
checkpoint_activations = True  # 8 examples are 80 sequences of 512: too many for 40 GB otherwise

# -- training ------------------------------------------------------------------------------------------------
train_batch_size = 8  # examples, each with up to max_candidates sequences
eval_batch_size = 8
max_steps = 86766  # 5,553,080 examples at 64 a step
seed = 10483
optimizer = "adamw"
learning_rate = 1e-5
weight_decay = 0.1
max_grad_norm = 1.0
generative_weight = 0.0  # of the right answer's own loss, beside the candidates'
lr_schedule = "linear"
lr_warmup_steps = 434  # a tenth of the decay
lr_decay_steps = 4338
lr_decay_ratio = 0.1  # of the learning rate is kept in the end
precision = "fp16"

# -- evaluation ----------------------------------------------------------------------------------------------
eval_steps = 300  # 600 * 8 * 4 examples at 64 a step
eval_at_start = False
