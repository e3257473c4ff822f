"""FlagPerf's values of all shapes on R300.

FlagPerf counts micro-steps, we count optimizer steps: its max_steps is gradient_accumulation_steps times ours, and so
is its evaluation every 2000. But its learning rate reaches zero after max_steps optimizer steps, therefore
lr_decay is its max_steps.
"""

precision = "fp32"
train_batch_size = 8
eval_batch_size = 8
learning_rate = 3.5e-4
weight_decay = 0.01
beta1 = 0.9
beta2 = 0.999
lr_warmup = 0
max_samples = 45_000_000  # FlagPerf's max_samples_termination, over all devices
seed = 9031
