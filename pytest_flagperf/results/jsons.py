"""Frozen dataclasses to JSON and back, and files that are either whole or not there."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_flagperf.printable import printable, printable_in


class FormatError(ValueError):
    """A stored file that this version cannot read; the text says which and why."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


def sayable(value: Any) -> Any:
    """The value in JSON's words; NaN and the infinities become strings, as in PerfLog."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: sayable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): sayable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [sayable(item) for item in value]
    return value


def write_text(path: Path, text: str) -> None:
    """The file appears whole or not at all: written beside under another name, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        # Half a character, which a log may hold, is said in JSON's own way.
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace", newline="") as stream:
            stream.write(text)
        # mkstemp makes private files; reports are for everyone the folder is for.
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write(path: Path, value: Any) -> None:
    write_text(path, json.dumps(sayable(value), indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def read(path: Path, schema: int | None = None) -> dict[str, Any]:
    """The file's object, its texts printable; ``schema`` is the newest version of it that the caller understands."""
    try:
        text = path.read_text(encoding="utf-8")
        body = json.loads(text)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FormatError(f"{path}: is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise FormatError(f"{path}: holds a {type(body).__name__}, wanted an object")
    if schema is not None:
        check_schema(body, schema, str(path))
    # A character that JSON escapes stands behind a backslash; most files hold neither.
    return dict(printable_in(body)) if "\\" in text or printable(text) != text else body


def objects(value: object) -> list[dict[str, Any]]:
    """Those of a list that was read; what is no list has none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def check_schema(body: Mapping[str, Any], schema: int, where: str) -> None:
    got = body.get("schema")
    if not isinstance(got, int) or isinstance(got, bool) or got < 1:
        raise FormatError(f"{where}: schema is {got!r}, wanted a whole number from 1 to {schema}")
    if got > schema:
        raise FormatError(
            f"{where}: schema {got} is of a newer pytest-flagperf; this one reads up to {schema}: upgrade it"
        )
