"""Write files completely or not at all, and read JSON files with one type of error."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any

from flagperf_driver import perflog
from pytest_flagperf.printable import printable, printable_in

_CONTAINERS = frozenset([dict, list])
_PLAIN = frozenset([str, int, bool, type(None)])
_TO_ESCAPE = ("\\", "\x7f", "#", "::")
"""What ASCII JSON has if ``printable`` may change a text of it; one character is found a hundred times as fast."""
_OF_DISK = {
    errno.ENOSPC: "no space or no inodes left on the disk mounted at {disk}; remove files there",
    errno.EDQUOT: "your quota on the disk mounted at {disk} is used up; remove files there",
    errno.EROFS: "the disk mounted at {disk} is read-only; mount it writable",
}
_CANNOT_BE_SYNCED = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)


class FormatError(ValueError):
    """A stored file that this version cannot read; the text has the file and the reason."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


class WriteError(OSError):
    """A file or folder that cannot be written; the text is one sentence with the folder, the disk and the reason."""

    def __str__(self) -> str:
        return f"cannot write {self.filename}: {self.strerror}"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert each OSError of the block, which writes the file or folder ``path``, to a WriteError."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        raise WriteError(error.errno, _reason(path, error), str(path)) from error


def make_folder(path: Path) -> None:
    """Create a folder and its parents."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a text file; a lone surrogate is written as its escape.

    The file gets its name after its content is on the disk. After a failed write, a killed process or a power failure
    the disk has the old file or the new file, never a part of a file.
    """
    write_texts({path: text}, mode)


def write_texts(texts: Mapping[Path, str], mode: int = 0o644) -> None:
    """Write text files that belong together; none gets its name before the contents of all are on the disk."""
    prepared: dict[Path, Path] = {}
    try:
        for path, text in texts.items():
            make_folder(path.parent)
            with writing(path):
                handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
                prepared[path] = Path(name)
                with os.fdopen(handle, "wb") as stream:
                    stream.write(encoded(text))
                    stream.flush()
                    prepared[path].chmod(mode)
                    os.fsync(handle)
        for path, temporary in prepared.items():
            with writing(path):
                temporary.replace(path)
                _sync_folder(path.parent)
    except BaseException:
        for temporary in prepared.values():
            with suppress(OSError):
                temporary.unlink()
        raise


def write(path: Path, value: Any) -> None:
    """Write a value as JSON."""
    write_text(path, dumps(to_json_types(value)) + "\n")


def dumps(value: Any) -> str:
    """Return the JSON text of a value that has JSON's types."""
    return json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)


def encoded(text: str) -> bytes:
    """Return the bytes of a text as files have them; a lone surrogate becomes its escape."""
    return text.encode("utf-8", "backslashreplace")


def read(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    return parsed(read_text(path), path)


def read_text(path: Path) -> str:
    """Return the text of a stored file."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FormatError(f"{path}: invalid JSON: {error}") from error


def fast_loads(text: str) -> Any:
    """Parse JSON three times as fast; a whole number of more than 64 bits becomes a float."""
    import orjson  # the plugin does without it

    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:  # such as of NaN, which this parser does not know
        return json.loads(text)


def parsed(text: str, path: Path, loads: Callable[[str], Any] = json.loads) -> dict[str, Any]:
    """Return the object in the text of a JSON file."""
    try:
        body = loads(text)
        too_deep = _is_too_deep(body)
        if "\\" in text and perflog.may_have_surrogates(text) and not too_deep:
            body = perflog.escape_surrogates(body)
    except RecursionError:
        too_deep = True
    except ValueError as error:
        raise FormatError(f"{path}: invalid JSON: {error}") from error
    if too_deep:
        raise FormatError(
            f"{path}: lists and objects are nested too deeply; expected at most {perflog.MAX_DEPTH} levels"
        )
    if not isinstance(body, dict):
        raise FormatError(f"{path}: expected a JSON object; got a {type(body).__name__}")
    return body


def _is_too_deep(body: Any) -> bool:
    """Return True if lists and objects are nested more than ``perflog.MAX_DEPTH`` deep."""
    level: list[Any] = [[body]]
    for _ in range(perflog.MAX_DEPTH + 1):
        level = [
            item
            for container in level
            for item in (container.values() if type(container) is dict else container)
            if type(item) in _CONTAINERS
        ]
        if not level:
            return False
    return True


def read_printable(path: Path, schema: int | None = None, loads: Callable[[str], Any] = json.loads) -> dict[str, Any]:
    """Return the object in a JSON file with printable texts; ``schema`` is the newest supported version."""
    text = read_text(path)
    body = parsed(text, path, loads)
    if not text.isascii() or any(mark in text for mark in _TO_ESCAPE):
        body = printable_in(body)  # slow, and hardly any file needs it
    if schema is not None:
        check_schema(body, schema, str(path))
    return body


def objects(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list; an empty list for any other value."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def check_schema(body: Mapping[str, Any], schema: int, where: str) -> None:
    """Raise FormatError if the object has no schema or a newer one; ``schema`` is the newest supported version."""
    got = body.get("schema")
    if not isinstance(got, int) or isinstance(got, bool) or got < 1:
        raise FormatError(f"{where}: schema is {got!r}; expected a whole number from 1 to {schema}")
    if got > schema:
        raise FormatError(
            f"{where}: schema {got} was written by a newer pytest-flagperf; expected at most {schema}: upgrade"
        )


def to_json_types(value: Any) -> Any:
    """Return the value in JSON's types; NaN and the infinities become strings, as in PerfLog."""
    if type(value) in _PLAIN:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json_types(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): to_json_types(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_types(item) for item in value]
    return value


def _reason(path: Path, error: OSError) -> str:
    """Return the reason of a failed write, the disk's mount point and the fix."""
    reason = _OF_DISK.get(error.errno or 0)
    return reason.format(disk=_mount_point(path)) if reason else error.strerror or str(error)


def _mount_point(path: Path) -> Path:
    path = path.absolute()
    # Path.is_mount() raises an exception on Windows before Python 3.12.
    return next((folder for folder in (path, *path.parents) if os.path.ismount(folder)), path)


def _sync_folder(folder: Path) -> None:
    """Sync a folder, so that the disk keeps a new name in it; some systems cannot sync folders."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _CANNOT_BE_SYNCED:
            raise
    finally:
        os.close(handle)
