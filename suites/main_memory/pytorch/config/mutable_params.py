"""Keys that a vendor's file and ``--set`` may override, in addition to ``MUTABLE`` of the measurements' defaults."""

mutable_params = ["capacity_most", "sizes"]
