"""What the shapes of many cards share: the original's batch, by which they count steps; all else is the reference's."""

train_batch_size = 8
eval_batch_size = 8
