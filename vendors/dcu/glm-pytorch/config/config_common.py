"""What all shapes on K100 share: FlagPerf's."""

precision = "fp16"
gradient_accumulation_steps = 1
learning_rate = 1e-5
weight_decay = 0.1
beta1 = 0.9
beta2 = 0.999
epsilon = 1e-8
lr_warmup_steps = 434
lr_decay_steps = 4338
lr_decay_ratio = 0.1
seed = 10483
