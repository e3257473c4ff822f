"""FlagPerf's values on C500, where they differ from the reference scale."""

vendor = "metax"
train_batch_size = 40  # 10,240 tokens
