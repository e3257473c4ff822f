"""What all shapes on C500 share, FlagPerf's; all else is the reference's."""

train_batch_size = 16
eval_batch_size = 16
