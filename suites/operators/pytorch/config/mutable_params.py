"""Keys that a vendor's file and ``--set`` may override, in addition to ``MUTABLE`` of the measurements' defaults."""

mutable_params = ["case_settings", "compare_s", "compiled", "shapes_of", "warmup_steps"]
