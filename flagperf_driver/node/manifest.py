"""Verify that a data directory contains the files of the suite's manifest.

An entry is ``{"path", "kind", "files", "folders", "size"}``, where only ``path`` is required.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any, Mapping, Sequence


def verify(data_dir: str, entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each missing or different file or folder; an empty list if all match."""
    root = Path(data_dir)
    if not root.is_dir():
        return [f"{root}: data directory not found"]
    return [problem for entry in entries for problem in _entry(root, entry)]


def _entry(root: Path, entry: Mapping[str, Any]) -> list[str]:
    path = root / str(entry.get("path", ""))
    kind = entry.get("kind", "file")
    if not (path.is_dir() if kind == "folder" else path.is_file()):
        return [f"{path}: {kind} not found{_instead(path)}"]
    try:
        return _folder(path, entry) if kind == "folder" else _file(path, entry)
    except OSError as error:
        return [f"{error.filename or path}: cannot be read: {error.strerror}"]


def _instead(path: Path) -> str:
    if path.exists():
        return "; the path is a {}".format("folder" if path.is_dir() else "file")
    try:
        names = sorted(item.name for item in path.parent.iterdir())
    except OSError:
        return ""
    more = ", ..." if len(names) > 8 else ""
    return "; {} contains {}{}".format(path.parent, ", ".join(names[:8]) or "nothing", more)


def _folder(path: Path, entry: Mapping[str, Any]) -> list[str]:
    if "files" not in entry and "folders" not in entry:
        return []
    files, folders = count(path)
    got = {"files": (sum(files.values()), _by_suffix(files)), "folders": (folders, "")}
    return [
        f"{path}: got {number} {name}{details}, expected {entry[name]}"
        for name, (number, details) in got.items()
        if name in entry and entry[name] != number
    ]


def count(path: Path) -> tuple[Counter[str], int]:
    """Return the number of files by suffix and the number of folders below ``path``, at any depth.

    Hidden files and folders, such as ``.DS_Store``, are not data. Links to folders are not followed.
    """
    files: Counter[str] = Counter()
    folders = 0
    stack = [os.fspath(path)]
    while stack:
        with os.scandir(stack.pop()) as items:
            for item in items:
                if item.name.startswith("."):
                    continue
                if item.is_dir(follow_symlinks=False):
                    folders += 1
                    stack.append(item.path)
                else:
                    files[os.path.splitext(item.name)[1]] += 1  # noqa: PTH122 - of a million names
    return files, folders


def _by_suffix(files: Counter[str]) -> str:
    """Return how many files have which suffix, if not all have the same: the fewest are probably surplus."""
    if len(files) < 2:
        return ""
    parts = [f"{number} {suffix or 'without suffix'}" for suffix, number in files.most_common()]
    return f" ({', '.join(parts[:4] + ['...'] * (len(parts) > 4))})"


def _file(path: Path, entry: Mapping[str, Any]) -> list[str]:
    size = path.stat().st_size
    if entry.get("size", size) != size:
        return ["{}: got {} bytes, expected {}".format(path, size, entry["size"])]
    return []
