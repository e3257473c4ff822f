"""Checks of all hosts before the first rank starts: run on all hosts at once, reported together."""

from .findings import FAIL, OK, WARN, Data, Finding, HostRequirements, Thresholds
from .host_check import inspect
from .host_rules import host_findings
from .messages import lines, near_devices, sentences, unfit_devices

__all__ = [
    "FAIL", "OK", "WARN", "Data", "Finding", "HostRequirements", "Thresholds",
    "host_findings", "inspect", "lines", "near_devices", "sentences", "unfit_devices",
]  # fmt: skip
