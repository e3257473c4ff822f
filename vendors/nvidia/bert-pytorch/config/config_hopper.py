"""What the shapes of many H100 or H200 share: the A100 configs' global batch and schedule, in bf16 and compiled.

A global batch of 96 sequences a card is what an A100 does in four micro-steps of 24.
"""

precision = "bf16"
compile = True  # noqa: A001 - an option's name
learning_rate = 3.5e-4
weight_decay = 0.01
beta1 = 0.9
beta2 = 0.999
lr_warmup_steps = 0
eval_steps = 500
seed = 9031
