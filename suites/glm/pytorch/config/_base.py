"""GLM-large (blank-filling) on ReCoRD, the reference scale. The driver's defaults have all other keys."""

vendor = ""
data_dir = ""

# -- data, relative to data_dir ------------------------------------------------------------------------------
# The encoded files of FlagPerf, or SuperGLUE's train.jsonl and val.jsonl, which also need vocab_file.
train_data = "ReCoRD/glm_train_eval_hdf5_sparse/train_hdf5/train_sparse.hdf5"
eval_data = "ReCoRD/glm_train_eval_hdf5_sparse/eval_hdf5/eval_sparse.hdf5"
vocab_file = "vocab.txt"  # the uncased wordpiece vocabulary of 30,522 tokens, one per line
init_checkpoint = "blocklm-large-blank/200000/mp_rank_00_model_states.pt"
max_seq_length = 512
max_answer_length = 16  # tokens of a candidate, including its end symbol; longer candidates are shortened
max_candidates = 10  # per example in training; evaluation scores all candidates, so many at a time
pack_tokens = True  # only attention computes padding
samples_per_item = max_candidates  # each candidate of a question is a sequence
synthetic_examples = 256  # per device, with --synthetic
train_examples = 0  # generated questions, for the small scale only
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
checkpoint_activations = True  # 8 examples are 80 sequences of 512, too many for 40 GB without checkpointing

# -- training ------------------------------------------------------------------------------------------------
train_batch_size = 8  # examples, each with up to max_candidates sequences
eval_batch_size = 8
max_steps = 86766  # 5,553,080 examples, 64 per step
seed = 10483
optimizer = "adamw"
learning_rate = 1e-5
weight_decay = 0.1
max_grad_norm = 1.0
generative_weight = 0.0  # weight of the right answer's own loss
lr_schedule = "linear"
lr_warmup = 434  # a tenth of the decay
lr_decay = 4338
lr_floor = 0.1
precision = "fp16"

# -- evaluation ----------------------------------------------------------------------------------------------
eval_steps = 300  # 600 * 8 * 4 examples, 64 per step
eval_at_start = False
