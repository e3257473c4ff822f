"""Checks of all hosts before the first rank starts: run on all hosts at once, reported together."""

from .findings import FAIL, OK, WARN, Data, Finding, Limits, Request
from .judge import judge
from .look import inspect
from .tell import lines, near_devices, sentences, unfit_devices

__all__ = [
    "FAIL", "OK", "WARN", "Data", "Finding", "Limits", "Request",
    "inspect", "judge", "lines", "near_devices", "sentences", "unfit_devices",
]  # fmt: skip
