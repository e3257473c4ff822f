"""Keys that a vendor's file and ``--set`` may override, in addition to ``MUTABLE`` of the measurements' defaults."""

mutable_params = ["random_blocks", "read_mib", "sample_bytes", "sequential_blocks"]
