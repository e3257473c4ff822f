"""What the shapes of many H100 or H200 share: the A100 configs' batch and schedule, in bf16 and compiled."""

precision = "bf16"
compile = True  # noqa: A001 - an option's name
checkpoint_activations = False  # 80 sequences a card, of the 240 that an H200 is reckoned to hold
train_batch_size = 8
eval_batch_size = 8
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
