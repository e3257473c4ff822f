"""A Wav2Vec2 of 0.2 million parameters on synthetic speech: converges on one CPU core in seconds."""

dataset = "voices"
utterances = 400
rate = 8000
lengths = [4800]
samples_per_item = 59
span = 5
negatives = 20

convolutions = [[48, 10, 5], [48, 3, 2], [48, 3, 2], [48, 3, 2], [48, 2, 2]]
layers = 3
channels = 64
inner_channels = 256
heads = 4
position_kernel = 16
position_groups = 4
dropout = 0.0
layer_drop = 0.0
codes = 16
code_channels = 32
projected_channels = 32
penalty_weight = 1.0
gumbel_decay = 0.995

train_batch_size = 16
eval_batch_size = 15
gradient_accumulation_steps = 1
max_steps = 150
learning_rate = 4e-3
lr_schedule = "cosine"
lr_warmup = 8
eval_steps = None

precision = "fp32"
num_workers = 0
cudnn_benchmark = True
log_freq = 5
eval_samples = 9440  # frames: 10 steps at 1x1
