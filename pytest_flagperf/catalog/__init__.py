"""The suites and vendors of a tree, and the contents of their TOML files."""

from .catalog import Catalog, list_configs
from .roots import bundled, bundled_argument, bundled_name, scan
from .suite import DIRECTIONS, REFERENCE, SCALES, DataItem, Goal, Scale, Suite, SuiteMetric
from .toml_reader import CatalogError, key_lines, line_of
from .vendor import BEST_EFFICIENCY, FOLDER_NAME, FOLDER_NAME_RULE, RUNTIMES, Chip, ContainerDefaults, Vendor

__all__ = [
    "BEST_EFFICIENCY",
    "DIRECTIONS",
    "FOLDER_NAME",
    "FOLDER_NAME_RULE",
    "REFERENCE",
    "RUNTIMES",
    "SCALES",
    "Catalog",
    "CatalogError",
    "Chip",
    "ContainerDefaults",
    "DataItem",
    "Goal",
    "Scale",
    "Suite",
    "SuiteMetric",
    "Vendor",
    "bundled",
    "bundled_argument",
    "bundled_name",
    "key_lines",
    "line_of",
    "list_configs",
    "scan",
]
