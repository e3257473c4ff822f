"""What a vendor's file and --set may override here, beside flagperf_driver/defaults.py's own list."""

mutable_params = [
    "eval_data",
    "init_checkpoint",
    "lr_decay_ratio",
    "synthetic_examples",
    "train_data",
    "vocab_file",
]
