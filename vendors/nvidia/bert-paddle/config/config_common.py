"""Values of all shapes on A100: FlagPerf's."""

train_batch_size = 12
eval_batch_size = 12
learning_rate = 1e-4
lr_warmup = 2000
max_steps = 10_000
lr_decay = 10_000
max_samples = 4_500_000
seed = 9031
