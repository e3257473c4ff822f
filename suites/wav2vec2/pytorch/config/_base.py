"""Wav2Vec2 base on LibriSpeech, with FlagPerf's hyper-parameters."""

# -- data ------------------------------------------------------------------------------------------------
dataset = "librispeech"  # librispeech (files) or voices (synthetic speech)
utterances = 300  # of voices
words = 6  # of an utterance of voices, at most
train_data = "train-full-960.tsv"
eval_data = "dev-other.tsv"
rate = 16000  # samples per second
lengths = [32000, 64000, 96000, 128000, 160000, 192000, 224000, 250000]  # samples: a recording is cut to one of these
samples_per_item = 781  # frames of the greatest length
masked_share = 0.49  # of the frames
span = 10  # frames that are masked together
negatives = 100  # wrong frames to tell from the right one
synthetic_recordings = 281241  # of an epoch with --synthetic

# -- model -----------------------------------------------------------------------------------------------
# channels, kernel and stride of each
convolutions = [[512, 10, 5], [512, 3, 2], [512, 3, 2], [512, 3, 2], [512, 3, 2], [512, 2, 2], [512, 2, 2]]
layers = 12
channels = 768
inner_channels = 3072
heads = 12
position_kernel = 128
position_groups = 16
dropout = 0.1
layer_drop = 0.05  # probability that a layer is left out
codebooks = 2
codes = 320  # of each codebook
code_channels = 256
projected_channels = 256
temperature = 0.1  # of the similarities

# -- loss ------------------------------------------------------------------------------------------------
diversity_weight = 0.1
penalty_weight = 10.0  # of the features' size
feature_gradient = 0.1  # factor of the gradient that the convolutions get
gumbel_first = 2.0  # temperature of the choice of codes
gumbel_decay = 0.999995  # factor of each step
gumbel_last = 0.5

# -- training ----------------------------------------------------------------------------------------------
train_batch_size = 24
eval_batch_size = 24
gradient_accumulation_steps = 2
max_steps = 400_000
optimizer = "adam"
learning_rate = 5e-4
beta2 = 0.98
epsilon = 1e-6
weight_decay = 0.01
decay_vectors = True
lr_schedule = "linear"
lr_warmup = 32_000
eval_steps = 100

# -- speed -------------------------------------------------------------------------------------------------
precision = "fp32"
num_workers = 6
cudnn_benchmark = False  # batches have eight lengths
log_freq = 10
