"""Keys that a vendor's file and ``--set`` may override, in addition to ``MUTABLE`` of flagperf_driver/defaults.py."""

mutable_params = ["init_checkpoint", "max_grad_norm", "lr_schedule"]
