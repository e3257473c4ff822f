"""Find a tree's root and its settings file, and read this file."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..problems import kind
from .options import SettingsError


def tree_root(rootpath: Path, command_line: Mapping[str, Any]) -> Path | None:
    """Return the tree of a pytest run, if any. This must be fast: every pytest run calls it."""
    return find_root(rootpath) or (rootpath if given_options(command_line) else None)


def find_root(rootpath: Path) -> Path | None:
    """Return the nearest folder, upwards, with suites, vendors or settings."""
    return next((folder for folder in (rootpath, *rootpath.parents) if _is_root(folder)), None)


def _is_root(folder: Path) -> bool:
    # os.path instead of Path.is_file: an unreadable parent folder is not an error.
    if os.path.isfile(folder / "flagperf.toml"):  # noqa: PTH113
        return True
    for name, files in (("suites", "suites/*/*/suite.toml"), ("vendors", "vendors/*/vendor.toml")):
        if os.path.isdir(folder / name) and any(folder.glob(files)):  # noqa: PTH112
            return True
    return _mentions_us(folder / "pyproject.toml") and settings_file(folder) is not None


def _mentions_us(project: Path) -> bool:
    """Return True if a pyproject.toml may have our settings: files of other projects may be large or invalid."""
    try:
        return b"flagperf" in project.read_bytes()
    except OSError:
        return False


def settings_file(root: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the settings file of a tree and its table: flagperf.toml, else [tool.flagperf] of pyproject.toml."""
    own = root / "flagperf.toml"
    if own.is_file():
        return own, _load(own)
    project = root / "pyproject.toml"
    tools = _load(project).get("tool") if project.is_file() else None
    table = tools.get("flagperf") if isinstance(tools, dict) else None
    if table is None:
        return None
    if not isinstance(table, dict):
        raise SettingsError([f"{project}: tool.flagperf: expected a table, [tool.flagperf], got {kind(table)}"])
    return project, table


def _load(path: Path) -> dict[str, Any]:
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise SettingsError([f"{path}: not a TOML file: not UTF-8: {error}"]) from error
    except (ValueError, RecursionError) as error:  # too many digits in a number raise a plain ValueError
        raise SettingsError([f"{path}: not a TOML file: {error}"]) from error
    except OSError as error:
        raise SettingsError([f"{path}: cannot be read: {error.strerror}"]) from error
    return table


def given_options(command_line: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in command_line.items() if value is not None}
