"""Eight cards, to the target."""

vendor = "iluvatar"
train_batch_size = 40  # 10,240 tokens
expected_time_s = 35669  # FlagPerf's published e2e_time
