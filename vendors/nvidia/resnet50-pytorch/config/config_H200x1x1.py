"""One H200, for throughput, with settings for speed: bf16, channels last, compiled, a large batch."""

vendor = "nvidia"
precision = "bf16"
channels_last = True
compile = True  # noqa: A001
cudnn_benchmark = True
train_batch_size = 512
eval_batch_size = 512
learning_rate = 0.2  # 0.1 per 256 images
lr_warmup = 5
num_workers = 16
log_freq = 20
throughput_steps = 100
timing_warmup_steps = 20
