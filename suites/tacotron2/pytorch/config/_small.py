"""A Tacotron 2 of 0.3 million parameters on synthetic speech: converges on one CPU core in half a minute."""

dataset = "voices"
max_frames = 62
max_symbols = 10
samples_per_item = max_frames

rate = 8000
fft = 256
hop = 100
mels = 20
mel_high = 4000.0
mel_floor = 1e-3
mel_mean = -3.0
mel_deviation = 2.0

symbols = 64
encoder_layers = 2
encoder_channels = 64
attention_channels = 32
location_filters = 8
location_kernel = 15
prenet_channels = 32
decoder_channels = 96
decoder_dropout = 0.0
postnet_layers = 3
postnet_channels = 64
dropout = 0.1
frames_per_step = 2

train_batch_size = 32
eval_batch_size = 30
max_epochs = None
max_samples = None
max_steps = 200
learning_rate = 1e-2
lr_schedule = "cosine"
lr_unit = "steps"
lr_milestones = None
lr_warmup = 10
eval_samples = 20_000  # 10 steps at 1x1

precision = "fp32"
num_workers = 0
log_freq = 5
