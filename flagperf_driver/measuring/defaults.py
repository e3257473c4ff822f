"""The config keys of a measurement with their default values: its config's lowest layer.

A suite's ``_base.py`` overrides these values and adds its own keys: sizes, data types. A vendor's file may override the
keys in ``MUTABLE`` and in the suite's ``mutable_params.py``. The comments document the keys.
"""

from __future__ import annotations

from typing import Literal

# -- paths; the harness sets both ----------------------------------------------------------------------------
vendor = ""  # the vendor of the accelerators, as --vendor
data_dir = ""  # the folder of the training data, as --data-dir

# -- the loop ------------------------------------------------------------------------------------------------
window_s = 0.01  # length of a window; longer ones mix every disturbance into every window
point_warmup_s = 0.3  # a point's time that is not measured
point_least_s = 1.0  # measured for each point: a disturbance of a shared machine can last for tenths of a second
point_most_s = 3.0  # of a point, with its warm-up, if its interval is not narrow enough earlier
point_interval = 0.01  # half of the 95 % confidence interval at which a point is done, as a share of its time
expected_time_s: float | None = None  # measured time of a round; --plan prints it
seed = 42  # of random data; round i uses seed + i - 1

# -- the device ----------------------------------------------------------------------------------------------
precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"  # may fp32 be computed as tf32?
cudnn_benchmark = True  # try the algorithms of each shape and keep the fastest
cudnn_deterministic = False  # use only algorithms that repeat their results

# -- timeouts ------------------------------------------------------------------------------------------------
init_timeout_s = 1800.0  # from a rank's start to its first point
hang_timeout_s = 300.0  # without progress, after the first point
round_timeout_s: float | None = None  # for the whole round

MUTABLE = [
    "cudnn_benchmark", "cudnn_deterministic", "data_dir", "expected_time_s", "hang_timeout_s", "init_timeout_s",
    "point_interval", "point_least_s", "point_most_s", "point_warmup_s", "precision", "round_timeout_s", "seed",
    "vendor", "window_s",
]  # fmt: skip
"""Keys that a vendor's file and ``--set`` may override in every measurement."""
