"""Values of the shapes with several cards: the original's batch, from which they derive their steps."""

train_batch_size = 8
eval_batch_size = 8
