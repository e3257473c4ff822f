"""JSON of stored results: the common reader and writer, and the schema's number."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_flagperf import stored
from pytest_flagperf.printable import printable_in
from pytest_flagperf.stored import FormatError, sayable, write, write_text

__all__ = ["FormatError", "check_schema", "objects", "read", "sayable", "write", "write_text"]


def read(path: Path, schema: int | None = None) -> dict[str, Any]:
    """The file's object, its texts printable; ``schema`` is the newest version of it that the caller understands."""
    body: dict[str, Any] = printable_in(stored.read(path))
    if schema is not None:
        check_schema(body, schema, str(path))
    return body


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
