"""One card, for throughput: the suite's 5,120 tokens, which are FlagPerf's on one card."""

vendor = "iluvatar"
