"""What may depend on the chip."""

mutable_params = ["engine_options"]
