"""Llama 3.1 8B from random weights on C4, as in MLPerf Training v5.1 (llama31_8b), for eight devices."""

from typing import Literal

# -- data, relative to data_dir; the index .idx is beside it -------------------------------------------------
train_data = "c4-train.en_6_text_document.bin"
eval_data = "c4-validation-91205-samples.en_text_document.bin"
eval_sequences = 1024  # the first of the file
max_seq_length = 8192
samples_per_item = 8192  # a sample is a token

# -- model -------------------------------------------------------------------------------------------------
vocab_size = 128256
num_layers = 32
hidden_size = 4096
num_heads = 32
num_kv_heads = 8
head_size = 128
intermediate_size = 14336
tied_embeddings = False
norm_epsilon = 1e-5
rope_theta = 500000.0
rope_factor = 8.0  # how much slower the slowest pairs of dimensions turn
rope_low = 1.0  # turns in rope_old_context below which a pair is slowed down by the whole factor
rope_high = 4.0  # turns above which a pair is not slowed down
rope_old_context = 8192
init_std = 0.02
loss_chunk = 4096  # tokens whose logits are in memory

# -- training: a global batch of 32 sequences on eight devices --------------------------------------------------
train_batch_size = 2  # sequences
eval_batch_size = 2
gradient_accumulation_steps = 2
max_steps = 1_200_000
optimizer = "adamw"
learning_rate = 5e-4
beta1 = 0.9
beta2 = 0.95
epsilon = 1e-5
weight_decay = 0.1
max_grad_norm = 1.0
lr_schedule = "cosine"
lr_warmup = 512  # 16,384 sequences
lr_decay = 1_200_000
lr_floor = 0.1
# float8, mxfp8, nvfp4: the products of the blocks' layers; autocast's type is bf16
precision: Literal["fp32", "tf32", "bf16", "fp16", "float8", "mxfp8", "nvfp4"] = "bf16"
checkpoint_activations: bool | Literal["selective"] = False  # selective: keep products of matrices and attention
parallel = "fsdp"
num_workers = 2

# -- evaluation --------------------------------------------------------------------------------------------
eval_samples = 12_288 * 8192
eval_at_start = True
