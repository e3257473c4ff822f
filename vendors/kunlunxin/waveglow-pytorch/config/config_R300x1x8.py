"""Eight cards, to the target."""

train_batch_size = 4
max_epochs = 1501
max_samples = 150_100_000_000  # as many epochs
num_workers = 8
