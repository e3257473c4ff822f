"""Keys that a vendor's file and ``--set`` may override, in addition to ``MUTABLE`` of the measurements' defaults."""

mutable_params = ["precisions", "sizes", "sustained_s", "sustained_size"]
