"""What all shapes on M1 share."""

vendor = "made"
precision = "bf16"
train_batch_size = 64
