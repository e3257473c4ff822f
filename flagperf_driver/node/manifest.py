"""Whether a data directory holds what the suite says.

An entry is ``{"path", "kind", "files", "folders", "size", "sha256", "md5"}``, of which all but the path may be missing.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Mapping, Sequence

_BLOCK = 1 << 20
_KINDS = ("file", "folder")


def verify(data_dir: str, entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Everything that is missing or differs, one sentence each; nothing when the data are as declared."""
    root = Path(data_dir)
    if not root.is_dir():
        return [f"{root}: there is no such data directory"]
    return [problem for entry in entries for problem in _entry(root, entry)]


def _entry(root: Path, entry: Mapping[str, Any]) -> list[str]:
    path = root / str(entry.get("path", ""))
    kind = entry.get("kind", "file")
    if kind not in _KINDS:
        return ["{}: kind is {!r} in the suite's manifest; it can be {}".format(path, kind, " or ".join(_KINDS))]
    if not (path.is_dir() if kind == "folder" else path.is_file()):
        return [f"{path}: there is no such {kind}{_instead(path)}"]
    try:
        return _folder(path, entry) if kind == "folder" else _file(path, entry)
    except OSError as error:
        return [f"{error.filename or path}: cannot be read: {error.strerror}"]


def _instead(path: Path) -> str:
    if path.exists():
        return "; it is a {}".format("folder" if path.is_dir() else "file")
    try:
        there = sorted(item.name for item in path.parent.iterdir())
    except OSError:
        return ""
    more = ", ..." if len(there) > 8 else ""
    return "; {} holds {}{}".format(path.parent, ", ".join(there[:8]) or "nothing", more)


def _folder(path: Path, entry: Mapping[str, Any]) -> list[str]:
    if "files" not in entry and "folders" not in entry:
        return []
    files, folders = count(path)
    found = {"files": files, "folders": folders}
    return [
        f"{path}: {found[name]} {name} found, {entry[name]} expected"
        for name in found
        if name in entry and entry[name] != found[name]
    ]


def count(path: Path) -> tuple[int, int]:
    """Files and folders below ``path``, at any depth; links are followed to files, not into folders."""
    files = folders = 0
    stack = [os.fspath(path)]
    while stack:
        with os.scandir(stack.pop()) as found:
            for item in found:
                if item.is_dir(follow_symlinks=False):
                    folders += 1
                    stack.append(item.path)
                else:
                    files += 1
    return files, folders


def _file(path: Path, entry: Mapping[str, Any]) -> list[str]:
    size = path.stat().st_size
    if "size" in entry and entry["size"] != size:
        # Its checksum would differ too, and say less.
        return ["{}: {} bytes found, {} expected".format(path, size, entry["size"])]
    return [
        f"{path}: {name} is {found}, {entry[name]} expected"
        for name in ("sha256", "md5")
        if name in entry
        for found in [checksum(path, name)]
        if found != str(entry[name]).lower()
    ]


def checksum(path: Path, algorithm: str) -> str:
    digest = hashlib.new(algorithm)
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(_BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()
