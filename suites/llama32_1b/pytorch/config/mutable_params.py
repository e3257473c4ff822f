"""Keys that a vendor's file and ``--set`` may override, in addition to ``MUTABLE`` of the driver's defaults."""

mutable_params = ["loss_chunk"]
