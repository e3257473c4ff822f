"""MLPerf's closed division fixes these hyper-parameters; batch, learning rate and warm-up are free (README.md)."""

mutable_params = ["loss_chunk"]

fixed_params = [
    "beta1",
    "beta2",
    "epsilon",
    "weight_decay",
    "lr_decay",
    "lr_floor",
    "lr_unit",
    "lr_warmup_from",
    "lr_warmup_unit",
]
