"""Keys that a vendor's file and ``--set`` may override, in addition to ``MUTABLE`` of the driver's defaults."""

mutable_params = [
    "eval_data",
    "init_checkpoint",
    "pack_tokens",
    "synthetic_examples",
    "train_data",
    "vocab_file",
]
