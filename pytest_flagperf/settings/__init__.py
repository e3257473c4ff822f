"""The options of a run: their table, the settings file, and the source of each value."""

from __future__ import annotations

from .options import (
    COMMAND_LINE,
    COMMAND_LINE_OPTIONS,
    GROUPS,
    OPTIONS,
    SITE,
    Settings,
    SettingsError,
    SiteTable,
)
from .read import (
    ENGINES,
    LACKS,
    check_paths,
    check_unknown,
    find_root,
    holds_some,
    located,
    read_settings,
    split_case,
    tree_root,
    wrong_value,
)

__all__ = [
    "COMMAND_LINE",
    "COMMAND_LINE_OPTIONS",
    "ENGINES",
    "GROUPS",
    "LACKS",
    "OPTIONS",
    "SITE",
    "Settings",
    "SettingsError",
    "SiteTable",
    "check_paths",
    "check_unknown",
    "find_root",
    "holds_some",
    "located",
    "read_settings",
    "split_case",
    "tree_root",
    "wrong_value",
]
