"""The config keys that only TensorFlow 2 has, with default values, beside those of ``flagperf_driver/defaults.py``.

The harness reads this file without TensorFlow, so it imports nothing of it.
"""

from __future__ import annotations

compile = False  # noqa: A001 - compile the step's graph with XLA

MUTABLE = ["compile"]
"""Keys that a vendor's file and ``--set`` may override in every suite of TensorFlow 2."""
