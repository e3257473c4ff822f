"""MLPerf's closed division fixes these hyper-parameters; batch, learning rate and warm-up are free (README.md)."""

mutable_params: list[str] = []

fixed_params = ["beta1", "beta2", "epsilon", "weight_decay", "lr_unit", "lr_warmup_unit"]
