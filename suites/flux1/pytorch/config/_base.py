"""FLUX.1 from random weights on encoded pictures, as in MLPerf Training v5.1 (flux1), for eight devices."""

from typing import Literal

# -- data, relative to data_dir: folders of Arrow files, and the encodings of an empty text --------------------
train_data = "cc12m_preprocessed"
eval_data = "coco_preprocessed"
empty_data = "empty_encodings"
latent_channels = 16
latent_side = 32  # rows and columns: pictures of 256 x 256
latent_shift = 0.1159  # latents are (the autoencoder's values - latent_shift) * latent_scale
latent_scale = 0.3611
text_tokens = 256
text_size = 4096  # of T5's encoding of a token
pooled_size = 768  # of CLIP's encoding of the text
text_dropout = 0.1  # share of the samples that are trained without text
drawings = 0  # of an evaluation; the autoencoder, which would make pictures of them, is no part of the suite
drawing_steps = 8

# -- model -------------------------------------------------------------------------------------------------
hidden_size = 3072
num_heads = 24
num_double_blocks = 19
num_single_blocks = 38
mlp_ratio = 4
rope_axes = [16, 56, 56]  # values of a head that turn by the number, the row and the column of a token
rope_theta = 10000.0
time_waves = 256

# -- training: a global batch of 512 on eight devices ----------------------------------------------------------
train_batch_size = 16
eval_batch_size = 32
gradient_accumulation_steps = 4
max_steps = 30_000  # twice as many as MLPerf's slowest round with this batch
optimizer = "adamw"
learning_rate = 2e-4
beta1 = 0.9
beta2 = 0.95
epsilon = 1e-8
weight_decay = 0.1
decay_vectors = True
max_grad_norm = 1.0
lr_schedule = "constant"
lr_warmup = 1600
precision = "bf16"
checkpoint_activations: bool | Literal["selective"] = False  # selective: keep products of matrices and attention
parallel = "fsdp"
num_workers = 2

# -- evaluation --------------------------------------------------------------------------------------------
eval_samples = 262_144
eval_at_start = True
