"""Keys that a vendor's file and ``--set`` may override, in addition to ``MUTABLE`` of flagperf_driver/defaults.py."""

mutable_params = ["lr_step_epochs", "lr_warmup_epochs"]
