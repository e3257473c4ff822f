"""Files that end with a SHA-256 of their own text, so that a file that was changed after the run is noticed.

outcome.json also has the digests of the other files of its round, and results.json those of all outcomes and verdicts:
its digest stands for every file that its figures come from.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_flagperf.printable import printable_in

from . import layout
from .files import FormatError, check_schema, dumps, encoded, parsed, read_text, to_json_types, write_text

DIGEST = "digest"
"""The last key of such a file."""
MADE_FROM = "made_from"
"""The key of outcome.json and results.json with the digests of the files that they were made from."""
CHANGED = "changed after the run"
_PART_BYTES = 1 << 20
_END = re.compile(rf',\n "{DIGEST}": "([0-9a-f]{{64}})"\n}}\n?')
_END_BYTES = len(f',\n "{DIGEST}": "{"0" * 64}"\n}}\n')


class ChangedError(FormatError):
    """A stored file whose text is not the text that was written."""


def write(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object as JSON, with the digest of its text as its last key."""
    text = dumps({key: item for key, item in to_json_types(value).items() if key != DIGEST})
    open_text = text.removesuffix("\n}")
    write_text(path, f'{open_text},\n "{DIGEST}": "{_of_text(text)}"\n}}\n')


def read(path: Path, schema: int) -> dict[str, Any]:
    """Return the object in a file with printable texts; raise ChangedError if it has not the digest of its text.

    ``schema`` is the newest supported version.
    """
    text = read_text(path)
    body: dict[str, Any] = printable_in(parsed(text, path))
    check_schema(body, schema, str(path))
    if DIGEST not in body:
        raise ChangedError(f"{path}: {CHANGED}: it has no digest")
    end = _END.search(text, len(text) - _END_BYTES)
    if end is None or end.end() != len(text) or end[1] != _of_text(f"{text[: end.start()]}\n}}"):
        raise ChangedError(f"{path}: {CHANGED}: its digest is not that of its text")
    return body


def _stored_in(path: Path) -> str | None:
    """Return the digest that a file has at its end, without reading the rest of the file; None without one."""
    try:
        with path.open("rb", buffering=0) as stream:
            stream.seek(-min(2 * _END_BYTES, stream.seek(0, 2)), 2)
            end = _END.search(stream.read().decode("utf-8", "replace").replace("\r\n", "\n"))
    except OSError:
        return None
    return end[1] if end else None


def of_file(path: Path) -> str:
    """Return the SHA-256 of the bytes of a file, or why it cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while part := stream.read(_PART_BYTES):
                digest.update(part)
    except OSError as error:
        return f"unreadable: {error.strerror}"
    return digest.hexdigest()


def _of_text(text: str) -> str:
    return hashlib.sha256(encoded(text)).hexdigest()


def of_round(round_dir: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a round by its relative path, except its outcome and hidden files."""
    return {name: of_file(path) for name, path in _files_of_round(round_dir).items()}


def of_run(run_dir: Path) -> dict[str, str | None]:
    """Return the digest that each outcome and each file of verdicts has, by the file's relative path."""
    start = len(f"{run_dir.as_posix()}/")
    return {path.as_posix()[start:]: _stored_in(path) for path in _files_of_run(run_dir)}


def changed_in_round(round_dir: Path, outcome: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each file of a round that differs from what its outcome was measured from."""
    yield from _changed(round_dir, outcome, of_round(round_dir), layout.OUTCOME)


def changed_in_run(run_dir: Path, results: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each outcome or file of verdicts that differs from what results.json was made from."""
    yield from _changed(run_dir, results, of_run(run_dir), layout.RESULTS)


def _changed(folder: Path, body: Mapping[str, Any], found: Mapping[str, str | None], made: str) -> Iterator[str]:
    made_from = body.get(MADE_FROM)
    made_from = made_from if isinstance(made_from, dict) else {}
    for name in sorted({*made_from, *found}):
        if name not in found:
            reason = f"it is missing, and {made} was made from it"
        elif name not in made_from:
            reason = f"{made} was made without it"
        elif made_from[name] != found[name]:
            reason = f"{made} was made from another one"
        else:
            continue
        yield f"{folder / name}: {CHANGED}: {reason}"


def _files_of_round(round_dir: Path) -> dict[str, Path]:
    names = ((path.relative_to(round_dir).as_posix(), path) for path in sorted(round_dir.rglob("*")))
    hidden = ((name, path) for name, path in names if name != layout.OUTCOME and not path.name.startswith("."))
    return {name: path for name, path in hidden if path.is_file() and not path.is_symlink()}


def _files_of_run(run_dir: Path) -> list[Path]:
    patterns = (f"*/*/{layout.OUTCOME}", f"*/{layout.VERDICTS}/*.json", f"*/{layout.ONE_CARD_FIGURE}")
    return sorted(path for pattern in patterns for path in run_dir.glob(pattern))
