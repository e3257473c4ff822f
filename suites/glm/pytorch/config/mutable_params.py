"""Keys that a vendor's file and ``--set`` may override, in addition to ``MUTABLE`` of flagperf_driver/defaults.py."""

mutable_params = [
    "eval_data",
    "init_checkpoint",
    "synthetic_examples",
    "train_data",
    "vocab_file",
]
