"""Two hosts of eight cards, to the target."""

vendor = "iluvatar"
train_batch_size = 40  # 10,240 tokens
