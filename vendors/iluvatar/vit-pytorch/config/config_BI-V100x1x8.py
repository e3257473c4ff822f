"""FlagPerf's values on BI-V100 at 1x8."""

eval_batch_size = 512
