"""The lab's plugin of pytest-flagperf: its hooks, one module for each."""

from .engine import flagperf_engines
from .exporter import flagperf_exporters
from .roots import flagperf_roots
from .transfer import flagperf_kinds
from .verdicts import flagperf_verdicts

__all__ = ["flagperf_engines", "flagperf_exporters", "flagperf_kinds", "flagperf_roots", "flagperf_verdicts"]
