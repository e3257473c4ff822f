"""Values of all shapes on BI-V100."""

train_batch_size = 96
eval_batch_size = 96
seed = 23333
num_workers = 8
