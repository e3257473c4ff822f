"""gpt-oss-20b from random weights on C4, as in MLPerf Training v6.0 (gpt_oss_20b), for eight devices."""

from typing import Literal

# -- data, relative to data_dir; the index .idx is beside it -------------------------------------------------
train_data = "c4-train.en_6_text_document.bin"
eval_data = "c4-validation-91205-samples.en_text_document.bin"
eval_sequences = 1024  # the first of the file
max_seq_length = 8192
samples_per_item = 8192  # a sample is a token

# -- model -------------------------------------------------------------------------------------------------
vocab_size = 201088
num_layers = 24
hidden_size = 2880
num_heads = 64
num_kv_heads = 8
head_size = 64
intermediate_size = 2880  # of one expert
num_experts = 32
experts_per_token = 4
attention_window = 128  # places that a query sees in every second layer, from the first one on
tied_embeddings = False
norm_epsilon = 1e-5
rope_theta = 150000.0
rope_factor = 32.0  # how much slower the slowest pairs of dimensions turn
rope_low = 1.0  # turns in rope_old_context below which a pair is slowed down by the whole factor
rope_high = 32.0  # turns above which a pair is not slowed down
rope_old_context = 4096
init_std = 0.008
balance_factor = 0.0  # how much an uneven load of the experts adds to the loss; MLPerf's recipe has no such loss
max_expert_load: float | None = None  # times the mean; not judged: without a balance it may reach 8
grouped_products = True  # the products of all experts in one call; False: expert by expert
loss_chunk = 4096  # tokens whose logits are in memory

# -- training: a global batch of 16 sequences on eight devices --------------------------------------------------
train_batch_size = 2  # sequences
eval_batch_size = 2
gradient_accumulation_steps = 1
max_steps = 1_200_000
optimizer = "adamw"
learning_rate = 4e-4
beta1 = 0.9
beta2 = 0.95
epsilon = 1e-5
weight_decay = 0.1
max_grad_norm = 1.0
lr_schedule = "cosine"
lr_warmup = 128  # 2,048 sequences
lr_decay = 1_200_000
lr_floor = 0.1
precision = "bf16"
checkpoint_activations: bool | Literal["selective"] = "selective"  # it keeps products of matrices and attention
parallel = {"expert": -1}  # each rank has a part of the experts, and of every other weight
num_workers = 2

# -- evaluation --------------------------------------------------------------------------------------------
eval_samples = 12_288 * 8192
eval_at_start = True
