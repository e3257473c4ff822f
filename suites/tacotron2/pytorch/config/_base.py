"""Tacotron 2 on LJ Speech, with FlagPerf's hyper-parameters."""

# -- data ------------------------------------------------------------------------------------------------
dataset = "ljspeech"  # ljspeech (files) or voices (synthetic speech)
utterances = 600  # of voices
wavs = "LJSpeech-1.1/wavs"
train_data = "filelists/ljs_mel_text_train_filelist.txt"
eval_data = "filelists/ljs_mel_text_val_filelist.txt"
max_frames = 872  # a spectrogram is filled up with zeros to this length, also where the loss is computed
max_symbols = 192  # a text is filled up to this length
samples_per_item = max_frames
synthetic_recordings = 12500  # of an epoch with --synthetic

# -- spectrogram -------------------------------------------------------------------------------------------
rate = 22050  # samples per second
fft = 1024
hop = 256
mels = 80
mel_low = 0.0  # Hz
mel_high = 8000.0
mel_floor = 1e-5  # the least value of a band before the logarithm
mel_mean = 0.0  # subtracted from the logarithms
mel_deviation = 1.0  # divides them

# -- model -----------------------------------------------------------------------------------------------
symbols = 148  # FlagPerf's table; this project uses the first 64
encoder_layers = 3
encoder_channels = 512
encoder_kernel = 5
attention_channels = 128
location_filters = 32
location_kernel = 31
prenet_channels = 256
decoder_channels = 1024
decoder_dropout = 0.1
postnet_layers = 5
postnet_channels = 512
postnet_kernel = 5
dropout = 0.5  # of the prenet, the encoder and the postnet
frames_per_step = 1
compiled_steps = 20  # decoder steps that are one graph with compile = True

# -- training ----------------------------------------------------------------------------------------------
train_batch_size = 128
eval_batch_size = 128
max_epochs = 1501
max_samples = 10_700_000_000  # 1501 epochs of 7.1 million frames; --plan estimates the duration by it
optimizer = "adam"
learning_rate = 1e-3
weight_decay = 1e-6
decay_vectors = True
max_grad_norm = 1.0
lr_schedule = "milestones"
lr_unit = "epochs"
lr_milestones = [[500, 0.3], [1000, 0.1], [1500, 0.03]]

# -- speed -------------------------------------------------------------------------------------------------
precision = "tf32"
num_workers = 4
log_freq = 10
