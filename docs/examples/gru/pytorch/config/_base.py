"""A GRU on MNIST."""

dataset = "mnist"  # mnist (files of the data directory) or digits (included)
train_data = "train"  # the first part of the files' names
eval_data = "t10k"
image_size = 28
width = 128

train_batch_size = 64
eval_batch_size = 500
max_epochs = 20
optimizer = "adamw"
learning_rate = 1e-3
