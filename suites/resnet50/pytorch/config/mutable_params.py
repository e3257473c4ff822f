"""What a vendor's file and ``--set`` may override here, besides what they may in every suite."""

mutable_params = ["lr_step_epochs", "lr_warmup_epochs"]
