"""Which suites and vendors exist, and what their files say."""

from .entries import (
    BEST_EFFICIENCY,
    DIRECTIONS,
    REFERENCE,
    RUNTIMES,
    SCALES,
    VENDOR_NAME,
    VENDOR_NAME_WANTED,
    Chip,
    Container,
    DataItem,
    Metric,
    Scale,
    Suite,
    Vendor,
)
from .roots import bundled, bundled_argument, bundled_name, scan
from .scan import Catalog, list_configs
from .tables import CatalogError

__all__ = [
    "BEST_EFFICIENCY",
    "DIRECTIONS",
    "REFERENCE",
    "RUNTIMES",
    "SCALES",
    "VENDOR_NAME",
    "VENDOR_NAME_WANTED",
    "Catalog",
    "CatalogError",
    "Chip",
    "Container",
    "DataItem",
    "Metric",
    "Scale",
    "Suite",
    "Vendor",
    "bundled",
    "bundled_argument",
    "bundled_name",
    "list_configs",
    "scan",
]
