"""Checks of all hosts before the first rank starts: run on all hosts at once, reported together."""

from .host_check import inspect
from .host_requirements import Data, HostRequirements, Thresholds
from .host_rules import host_findings
from .messages import lines, near_devices, sentences, unfit_devices

__all__ = [
    "Data", "HostRequirements", "Thresholds", "host_findings",
    "inspect", "lines", "near_devices", "sentences", "unfit_devices",
]  # fmt: skip
