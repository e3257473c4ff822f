"""What all shapes on BI-V100 share: FlagPerf's.

It counts micro-steps where we count optimizer steps: its max_steps is gradient_accumulation_steps times ours,
its evaluation every 2000 is our 500. Its learning rate would reach zero at optimizer step max_steps all the same:
lr_decay_steps.
"""

precision = "fp16"
train_batch_size = 20
eval_batch_size = 20
gradient_accumulation_steps = 4
learning_rate = 3.5e-4
weight_decay = 0.01
beta1 = 0.9
beta2 = 0.999
lr_warmup_steps = 0
max_samples = 4_500_000  # FlagPerf's max_samples_termination, over all cards
eval_steps = 500
seed = 9031
