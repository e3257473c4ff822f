"""Paths in settings: make them absolute, and check them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flagperf_driver import addresses

from ..problems import shown, unusable_path
from .options import OPTIONS

LACKS = "contains neither vendors/<vendor>/vendor.toml nor suites/<model>/<framework>/suite.toml"


def located(path: str, folder: Path) -> str:
    """Return the absolute path of a path that is relative to a folder."""
    return str(folder / os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises for an unknown user


def split_case(text: str) -> tuple[str, str | None]:
    """Split CASE=DIR into the case and its data directory."""
    case, _, folder = text.partition("=")
    return case, folder or None


def located_in(given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return values with absolute paths; relative paths start at the folder."""
    values = dict(given)
    for option in OPTIONS:
        # A program name without a slash is searched on the PATH.
        if option.path and option.key in given and (option.key != "python" or "/" in given[option.key]):
            value = given[option.key]
            values[option.key] = [located(text, folder) for text in value] if option.many else located(value, folder)
    if "case" in given:
        values["case"] = [_located_case(text, folder) for text in given["case"]]
    return values


def _located_case(text: str, folder: Path) -> str:
    case, data_dir = split_case(text)
    return f"{case}={located(data_dir, folder)}" if data_dir else case


def unusable_paths(given: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Yield the problems of paths that are relative to a folder, each with its option's name."""
    for option in OPTIONS:
        value = given.get(option.key)
        if value is None or not (option.path or option.key == "case"):
            continue
        for text in value if option.many else (value,):
            path = split_case(text)[1] if option.key == "case" else text
            if path == "":
                yield f"{option.name} is empty: expected a path"
            elif path is not None and (problem := unusable_path(path) or unusable_path(located(path, folder))):
                yield f"{option.name}: {shown(addresses.redacted(path))}: {problem}"


def roots_of(given: object, path: Path, problems: list[str]) -> tuple[str, ...]:
    """Return the roots that a file lists; each must exist and contain suites or vendors."""
    if not isinstance(given, list) or not given or not all(isinstance(item, str) for item in given):
        problems.append(
            f"{path}: roots = {addresses.redacted_text(shown(given))}: expected a list with at least one folder"
        )
        return ()
    roots = tuple(located(item, path.parent) for item in given)
    own = path.parent.resolve()
    for item, root in zip(given, roots, strict=True):
        problem = unusable_path(item) or unusable_path(root)
        if problem is None and Path(root).resolve() != own:
            problem = no_root(root)
        problems += [f"{path}: roots: {addresses.redacted(root)}: {problem}"] if problem else []
    return () if problems else roots


def no_root(root: str) -> str | None:
    """Return why a folder cannot be a root; None if it can."""
    folder = Path(root)
    try:
        if not folder.is_dir():
            return "no such folder"
        if holds_some(folder):
            return None
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if above := next(filter(holds_some, folder.resolve().parents[:2]), None):
        return f"expected the folder above vendors/ or suites/: {above}"
    return f"this folder {LACKS}"


def holds_some(folder: Path) -> bool:
    """Return True if a folder contains a suite or a vendor."""
    return any(any(folder.glob(files)) for files in ("vendors/*/vendor.toml", "suites/*/*/suite.toml"))
