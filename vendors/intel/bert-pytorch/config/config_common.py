"""Values of all shapes: FlagPerf's optimizer and schedule on A100, in bf16 and compiled.

An optimizer step has 96 sequences per card, as FlagPerf's four micro-steps of 24. FlagPerf counts micro-steps, we count
optimizer steps: its max_steps is four times ours, its evaluation every 2000 is our 500. But its learning rate reaches
zero after max_steps optimizer steps, therefore lr_decay is its max_steps.
"""

precision = "bf16"
compile = True  # noqa: A001 - an option's name
learning_rate = 3.5e-4
weight_decay = 0.01
beta1 = 0.9
beta2 = 0.999
lr_warmup = 0
max_samples = 4_500_000  # FlagPerf's max_samples_termination, over all devices
eval_steps = 500
seed = 9031
