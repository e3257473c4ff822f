"""SHA256SUMS: the SHA-256 of each file of a finished run, so that a file that was changed after the run is noticed.

A run of version 0.1 has digests within its files instead: each JSON file ends with that of its own text, results.json
has those of the outcomes and verdicts, and outcome.json those of the round's other files.
"""

from __future__ import annotations

import glob
import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from pytest_flagperf.printable import printable_in

from . import layout
from .files import FormatError, check_schema, encoded, parsed, read_text, write_texts

CHANGED = "changed after the run"
DIGEST, MADE_FROM = "digest", "made_from"
"""The keys of the digests within a file of version 0.1."""
_OWN = re.compile(rf',\n "{DIGEST}": "([0-9a-f]{{64}})"\n}}\n?\Z'.encode())
_OF_FIGURES = (f"*/*/{layout.OUTCOME}", f"*/{layout.VERDICTS}/*.json", f"*/{layout.ONE_CARD_FIGURE}")
"""The files that results.json is made from."""


class ChangedError(FormatError):
    """A stored file that is not the file that the run wrote."""


def write_results(run_dir: Path, results: str) -> None:
    """Write results.json, and SHA256SUMS with the digests of it and of all files that its figures come from."""
    sums = {name: _of_file(path) for name, path in _files(run_dir).items()}
    sums[layout.RESULTS] = _sha256(encoded(results))
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
    write_texts({run_dir / layout.RESULTS: results, run_dir / layout.SUMS: lines})


def read(path: Path, schema: int) -> dict[str, Any]:
    """Return the object in a file with printable texts; raise ChangedError if it is not the file that the run wrote.

    ``schema`` is the newest supported version. A run that has not finished has no digests yet.
    """
    text = read_text(path)
    got = _of_content(encoded(text))
    reason = None if got else "its digest is not that of its text"
    finished = [
        one for one in path.parents[:3] if any((one / name).is_file() for name in (layout.SUMS, layout.RESULTS))
    ]
    for run_dir in finished[:1] if got else ():
        source, expected = _expected(run_dir)
        reason = _reason(got, expected.get(path.relative_to(run_dir).as_posix()), source)
    if reason:
        raise ChangedError(f"{path}: {CHANGED}: {reason}")
    body: dict[str, Any] = printable_in(parsed(text, path))
    check_schema(body, schema, str(path))
    return body


def missing(run_dir: Path) -> Iterator[str]:
    """Yield a sentence for each file that the figures of results.json come from and that was removed."""
    source, expected = _expected(run_dir)
    for name, digest in sorted(expected.items()):
        path = run_dir / name
        if any(path.match(pattern) for pattern in _OF_FIGURES) and not path.is_file():
            yield f"{path}: {CHANGED}: {_reason(None, digest, source)}"


def changed(run_dir: Path) -> Iterator[str]:
    """Yield a sentence for each file of a finished run that was changed, added or removed after the run."""
    if (run_dir / layout.SUMS).is_file():
        yield from _differences(run_dir, *_expected(run_dir), _files(run_dir))
        return
    if (run_dir / layout.RESULTS).is_file():
        yield from _differences(run_dir, *_expected(run_dir), _by_name(run_dir, [layout.RESULTS, *_OF_FIGURES]))
    for path in sorted(run_dir.glob(_OF_FIGURES[0])):
        made_from = _made_from(path)
        files = {name: file for name, file in _by_name(path.parent, ["**/*"]).items() if name != layout.OUTCOME}
        if made_from:
            yield from _differences(path.parent, layout.OUTCOME, made_from, files)


def _differences(folder: Path, source: str, expected: Mapping[str, str], files: Mapping[str, Path]) -> Iterator[str]:
    for name in sorted({*expected, *files}):
        reason = _reason(_digests(files[name]) if name in files else None, expected.get(name), source)
        if reason:
            yield f"{folder / name}: {CHANGED}: {reason}"


def _reason(got: Collection[str] | None, expected: str | None, source: str) -> str | None:
    """Return why a file is not the one that the run wrote; None if one of its digests is the expected one."""
    if expected is None:
        return f"no digest of it in {source}"
    if got is None:
        return f"it is missing, and {source} has its digest"
    return None if expected in got else f"its digest is not that in {source}"


# -- the files of a run, and their digests -------------------------------------------------------------------


def _files(run_dir: Path) -> dict[str, Path]:
    """Return results.json, what it is made from, and all files of the rounds, by their relative paths."""
    rounds = (path.parent.relative_to(run_dir).as_posix() for path in run_dir.glob(f"*/*/{layout.PLAN}"))
    return _by_name(run_dir, [layout.RESULTS, *_OF_FIGURES, *(f"{glob.escape(folder)}/**/*" for folder in rounds)])


def _by_name(folder: Path, patterns: Iterable[str]) -> dict[str, Path]:
    found = {path.relative_to(folder).as_posix(): path for pattern in patterns for path in folder.glob(pattern)}
    return {
        name: path
        for name, path in found.items()
        if path.is_file() and not path.is_symlink() and not path.name.startswith(".")
    }


def _expected(run_dir: Path) -> tuple[str, Mapping[str, str]]:
    """Return the name of the file that has the digests of a run, and the digests by the names of their files."""
    for source in (layout.SUMS, layout.RESULTS):
        with suppress(FileNotFoundError):
            status = (run_dir / source).stat()
            digests = _read_digests(run_dir / source, status.st_mtime_ns, status.st_size)
            if digests or source == layout.SUMS:
                return source, digests
    return layout.SUMS, {}


@lru_cache(maxsize=64)
def _read_digests(path: Path, changed_ns: int, size: int) -> Mapping[str, str]:  # noqa: ARG001 - of the file that was read
    if path.name == layout.RESULTS:
        own = _OWN.search(path.read_bytes())
        return {**_made_from(path), layout.RESULTS: own[1].decode()} if own else {}
    with suppress(FormatError):
        lines = (line.split("  ", 1) for line in read_text(path).splitlines())
        return {line[1]: line[0] for line in lines if len(line) == 2}
    return {}


def _made_from(path: Path) -> dict[str, str]:
    """Return the digests that a JSON file of version 0.1 has of other files."""
    with suppress(FormatError):
        made_from = parsed(read_text(path), path).get(MADE_FROM)
        return made_from if isinstance(made_from, dict) else {}
    return {}


def _of_file(path: Path) -> str:
    """Return the SHA-256 of a file, which may be larger than the memory, or why it cannot be read."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        return f"unreadable: {error.strerror}"


def _digests(path: Path) -> tuple[str, ...]:
    with suppress(OSError):
        if path.suffix == ".json":
            return _of_content(path.read_bytes())
    return (_of_file(path),)


def _of_content(content: bytes) -> tuple[str, ...]:
    """Return the digest of a file, and the one at its end; nothing if that is not the digest of the text before it."""
    own = _OWN.search(content)
    if own is None:
        return (_sha256(content),)
    is_own = _sha256(content[: own.start()] + b"\n}") == own[1].decode()
    return (_sha256(content), own[1].decode()) if is_own else ()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
