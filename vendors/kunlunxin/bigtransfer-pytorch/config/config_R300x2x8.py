"""FlagPerf's values on R300 at 2x8."""

train_batch_size = 8
eval_batch_size = 8
gradient_accumulation_steps = 2
