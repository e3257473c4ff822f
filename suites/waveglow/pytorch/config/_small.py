"""A WaveGlow of 0.4 million parameters on synthetic speech: converges on one CPU core in seconds."""

dataset = "voices"
segment_length = 1600
samples_per_item = segment_length
hiss = 0.01

rate = 8000
fft = 256
hop = 100
mels = 20
mel_high = 4000.0

flows = 6
early_every = 3
upsample_kernel = 200
wavenet_layers = 3
wavenet_channels = 32
sigma = 1.0

train_batch_size = 16
eval_batch_size = 20
max_epochs = None
max_samples = None
max_steps = 150
learning_rate = 1e-3
lr_schedule = "cosine"
lr_warmup = 8

precision = "fp32"
num_workers = 0
log_freq = 5
eval_samples = 256_000  # 10 steps at 1x1
