"""Keys that a vendor's file and ``--set`` may override, in addition to ``MUTABLE`` of the driver's defaults."""

mutable_params = ["attention_dropout", "eval_data", "hidden_dropout", "init_checkpoint", "tokenizer", "train_data"]
