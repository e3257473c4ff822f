"""Verify that a data directory contains the files of the suite's manifest.

An entry is ``{"path", "kind", "files", "folders", "size", "sha256", "md5"}``, where only ``path`` is required.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

_BLOCK = 1 << 20
_REPORT_S = 1.0
_CHECKSUMS = ("sha256", "md5")


class Amounts:
    """What of a data directory is checked: parts of the manifest, files of its folders, and bytes with a checksum."""

    def __init__(self, root: Path, entries: Sequence[Mapping[str, Any]], report: Callable[..., None]) -> None:
        self._report, self._reported_at = report, float("-inf")
        self._done = dict.fromkeys(("parts", "files", "bytes"), 0)
        self._total = {
            "parts": len(entries),
            "files": sum(_number(entry.get("files")) for entry in entries if entry.get("kind") == "folder"),
            "bytes": sum(_size(root, entry) * sum(name in entry for name in _CHECKSUMS) for entry in entries),
        }

    def add(self, kind: str, number: int = 1) -> None:
        """Count what was checked; report all amounts at most once a second, and when all parts are checked."""
        self._done[kind] += number
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_S or self._done["parts"] == self._total["parts"]:
            self._reported_at = now
            self._report(done=dict(self._done), total=self._total)


def _number(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _size(root: Path, entry: Mapping[str, Any]) -> int:
    try:
        return os.stat(str(root / str(entry.get("path", "")))).st_size  # noqa: PTH116
    except OSError:
        return 0


def verify(
    data_dir: str, entries: Sequence[Mapping[str, Any]], report: Callable[..., None] = lambda **_: None
) -> list[str]:
    """Return a sentence for each missing or different file or folder; an empty list if all match.

    ``report`` is called with what is checked so far, ``done``, and with everything, ``total``.
    """
    root = Path(data_dir)
    if not root.is_dir():
        return [f"{root}: data directory not found"]
    amounts = Amounts(root, entries, report)
    problems = []
    for entry in entries:
        problems += _entry(root, entry, amounts)
        amounts.add("parts")
    return problems


def _entry(root: Path, entry: Mapping[str, Any], amounts: Amounts) -> list[str]:
    path = root / str(entry.get("path", ""))
    kind = entry.get("kind", "file")
    if not (path.is_dir() if kind == "folder" else path.is_file()):
        return [f"{path}: {kind} not found{_instead(path)}"]
    try:
        return _folder(path, entry, amounts) if kind == "folder" else _file(path, entry, amounts)
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


def _folder(path: Path, entry: Mapping[str, Any], amounts: Amounts) -> list[str]:
    if "files" not in entry and "folders" not in entry:
        return []
    files, folders = count(path, lambda number: amounts.add("files", number))
    got = {"files": (sum(files.values()), _by_suffix(files)), "folders": (folders, "")}
    return [
        f"{path}: got {number} {name}{details}, expected {entry[name]}"
        for name, (number, details) in got.items()
        if name in entry and entry[name] != number
    ]


def count(path: Path, counted: Callable[[int], None] = lambda _: None) -> tuple[Counter[str], int]:
    """Return the number of files by suffix and the number of folders below ``path``, at any depth.

    Hidden files and folders, such as ``.DS_Store``, are not data. Links to folders are not followed. ``counted`` is
    called with the number of files in each folder.
    """
    files: Counter[str] = Counter()
    folders = 0
    stack = [os.fspath(path)]
    while stack:
        in_folder = 0
        with os.scandir(stack.pop()) as items:
            for item in items:
                if item.name.startswith("."):
                    continue
                if item.is_dir(follow_symlinks=False):
                    folders += 1
                    stack.append(item.path)
                else:
                    files[os.path.splitext(item.name)[1]] += 1  # noqa: PTH122 - of a million names
                    in_folder += 1
        counted(in_folder)
    return files, folders


def _by_suffix(files: Counter[str]) -> str:
    """Return how many files have which suffix, if not all have the same: the fewest are probably surplus."""
    if len(files) < 2:
        return ""
    parts = [f"{number} {suffix or 'without suffix'}" for suffix, number in files.most_common()]
    return f" ({', '.join(parts[:4] + ['...'] * (len(parts) > 4))})"


def _file(path: Path, entry: Mapping[str, Any], amounts: Amounts) -> list[str]:
    size = path.stat().st_size
    if "size" in entry and entry["size"] != size:
        # The checksum would differ too, but the sizes tell the user more.
        return ["{}: got {} bytes, expected {}".format(path, size, entry["size"])]
    return [
        f"{path}: got {name} {digest}, expected {entry[name]}"
        for name in _CHECKSUMS
        if name in entry
        for digest in [checksum(path, name, lambda number: amounts.add("bytes", number))]
        if digest != str(entry[name]).lower()
    ]


def checksum(path: Path, algorithm: str, read: Callable[[int], None] = lambda _: None) -> str:
    digest = hashlib.new(algorithm)
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(_BLOCK), b""):
            digest.update(block)
            read(len(block))
    return digest.hexdigest()
