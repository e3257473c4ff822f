"""A case's config: its layers merged, checked, and each value with the file and line it came from."""

from .layers import DATA_KEYS, DEFAULTS, resolve
from .module import ConfigError, load
from .translation import OUTCOMES, Translated
from .values import Deviation, Resolved, Value, parse_settings

__all__ = [
    "DATA_KEYS",
    "DEFAULTS",
    "OUTCOMES",
    "ConfigError",
    "Deviation",
    "Resolved",
    "Translated",
    "Value",
    "load",
    "parse_settings",
    "resolve",
]
