"""Eight cards, to the target: FlagPerf's values. It counts micro-steps."""

train_batch_size = 8
eval_batch_size = 8
gradient_accumulation_steps = 7
learning_rate = 4e-4
lr_warmup = 0
max_steps = 50_000 // gradient_accumulation_steps
lr_decay = 50_000 // gradient_accumulation_steps
max_samples = 4_500_000
seed = 9031
