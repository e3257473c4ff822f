"""Eight cards, to the target."""

train_batch_size = 4
max_epochs = 1501
num_workers = 8
