"""What a vendor's file and ``--set`` may override besides the options that every suite leaves open."""

mutable_params = ["init_checkpoint", "max_grad_norm", "lr_schedule"]
