"""WaveGlow on LJ Speech, with FlagPerf's hyper-parameters."""

# -- data ------------------------------------------------------------------------------------------------
dataset = "ljspeech"  # ljspeech (files) or voices (synthetic speech)
utterances = 600  # of voices
wavs = "LJSpeech-1.1/wavs"
train_data = "filelists/ljs_audio_text_train_filelist.txt"
eval_data = "filelists/ljs_audio_text_val_filelist.txt"
segment_length = 8000  # samples of audio, at a random place of each recording
samples_per_item = segment_length
hiss = 0.0  # level of the white noise that is added
synthetic_segments = 12500  # of an epoch with --synthetic

# -- spectrogram -------------------------------------------------------------------------------------------
rate = 22050  # samples per second
fft = 1024
hop = 256
mels = 80
mel_low = 0.0  # Hz
mel_high = 8000.0
mel_floor = 1e-5  # the least value of a band before the logarithm

# -- model -----------------------------------------------------------------------------------------------
group = 8  # neighbouring samples that form the channels
flows = 12
early_every = 4  # flows after which early_size channels are done
early_size = 2
upsample_kernel = 1024
wavenet_layers = 8
wavenet_channels = 512
wavenet_kernel = 3
sigma = 1.0  # deviation of the noise

# -- training ----------------------------------------------------------------------------------------------
train_batch_size = 10
eval_batch_size = 10
max_epochs = 250
max_samples = 25_000_000_000  # 250 epochs of 12,500 segments; --plan estimates the duration by it
optimizer = "adam"
learning_rate = 1e-4

# -- speed -------------------------------------------------------------------------------------------------
precision = "fp16"
num_workers = 4
log_freq = 100
