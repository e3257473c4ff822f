"""Transformer (big) on WMT14 English-German, the reference scale. The driver's defaults have all other keys."""

vendor = ""
data_dir = ""

# -- data, relative to data_dir ------------------------------------------------------------------------------
# The source's file: binarised by fairseq (.bin), or a text, which also needs text_model. The target's file has its
# language in place of the source's.
train_data = "train.en-de.en.bin"
eval_data = "test.en-de.en.bin"
eval_references = "test.raw.de"
languages = ["en", "de"]
text_model = "joined.model"  # sentencepiece
bucket_lengths = [16, 24, 32, 48, 64, 96, 128, 256]  # sentences are padded to the next length; longer ones are left out
train_sentences = 0  # generated sentences, for the small scale only
eval_sentences = 0

# -- model ---------------------------------------------------------------------------------------------------
vocab_size = 33712
width = 1024
inner_width = 4096
heads = 16
layers = 6  # of the encoder and of the decoder
dropout = 0.1
attention_dropout = 0.1
inner_dropout = 0.1
max_positions = 1024

# -- training ------------------------------------------------------------------------------------------------
train_batch_size = 20  # sentences of the longest bucket: 5120 tokens with padding, in all buckets
samples_per_item = 256  # a sample is a token
max_epochs = 30
max_samples = 4_200_000_000  # 30 epochs of at most 140 million tokens; --plan estimates the duration by it
seed = 1
optimizer = "adam"
learning_rate = 8.46e-4
beta1 = 0.9
beta2 = 0.997
epsilon = 1e-9
lr_schedule = "inverse_sqrt"
lr_warmup = 4000
label_smoothing = 0.1
cudnn_benchmark = False

# -- evaluation ----------------------------------------------------------------------------------------------
eval_batch_size = 128  # sentences
beam = 4
length_penalty = 1.0
max_output_length = 200
eval_at_start = False
log_freq = 50
