"""Eight cards, to the target: FlagPerf's values."""

train_batch_size = 12
eval_batch_size = 12
learning_rate = 1e-4
lr_warmup = 0
max_steps = 15_000
lr_decay = 15_000
max_samples = 4_500_000
seed = 9031
