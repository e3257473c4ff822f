"""The suites and vendors of a tree, and the contents of their TOML files."""

from .catalog import Catalog
from .roots import bundled, bundled_argument, bundled_name, scan
from .suite import REFERENCE, SCALES, DataItem, Goal, Scale, Suite, framework_of
from .toml_reader import CatalogError, key_lines, line_of
from .vendor import BEST_EFFICIENCY, FOLDER_NAME, FOLDER_NAME_RULE, Chip, Vendor

__all__ = [
    "BEST_EFFICIENCY",
    "FOLDER_NAME",
    "FOLDER_NAME_RULE",
    "REFERENCE",
    "SCALES",
    "Catalog",
    "CatalogError",
    "Chip",
    "DataItem",
    "Goal",
    "Scale",
    "Suite",
    "Vendor",
    "bundled",
    "bundled_argument",
    "bundled_name",
    "framework_of",
    "key_lines",
    "line_of",
    "scan",
]
