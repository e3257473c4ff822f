"""FlagPerf's values of all shapes on R300, where they differ from the reference scale."""

vendor = "kunlunxin"
train_batch_size = 32  # 8,192 tokens
