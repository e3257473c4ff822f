"""Files that end with a SHA-256 of their own text, so that a file that was changed after the run is noticed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_flagperf.printable import printable_in

from .files import FormatError, check_schema, dumps, encoded, parsed, read_text, to_json_types, write_text

DIGEST = "digest"
"""The last key of such a file."""
MADE_FROM = "made_from"
"""The key of outcome.json and results.json with the digests of the files that they were made from."""
CHANGED = "changed after the run"
MISSING = "without a digest, as files before digests were stored"
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
    """Return the object in a file with printable texts; raise ChangedError if its digest is that of another text.

    A file without a digest is read too: ``stored_in`` returns None for it. ``schema`` is the newest supported version.
    """
    text = read_text(path)
    body: dict[str, Any] = printable_in(parsed(text, path))
    check_schema(body, schema, str(path))
    if MADE_FROM in body and DIGEST not in body:
        raise ChangedError(f"{path}: {CHANGED}: its digest was removed")
    if DIGEST in body:
        end = _END.search(text, len(text) - _END_BYTES)
        if end is None or end.end() != len(text) or end[1] != _of_text(f"{text[: end.start()]}\n}}"):
            raise ChangedError(f"{path}: {CHANGED}: its digest is not that of its text")
    return body


def stored_in(path: Path) -> str | None:
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
