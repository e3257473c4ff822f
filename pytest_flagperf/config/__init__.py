"""The config of a case: merge and check its layers, and keep the file and line of each value."""

from ..stored.plan import Deviation, Value
from .layers import DATA_KEYS, DEFAULTS, Resolved, keys_of, parse_settings, parse_sweep, resolve, values_of_variant
from .module import ConfigError, load, load_partly
from .translation import OUTCOMES, TranslatedName
from .value_types import is_size

__all__ = [
    "DATA_KEYS",
    "DEFAULTS",
    "OUTCOMES",
    "ConfigError",
    "Deviation",
    "Resolved",
    "TranslatedName",
    "Value",
    "is_size",
    "keys_of",
    "load",
    "load_partly",
    "parse_settings",
    "parse_sweep",
    "resolve",
    "values_of_variant",
]
