"""Check that values read from a file have the types that their class declares."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

from pytest_flagperf.problems import shown
from pytest_flagperf.typed import Check, keys_of, made

from .files import FormatError

_SHOWN = 40
_CHECK = Check(lambda _, value: shown(value)[:_SHOWN])
_CHECK_PERFLOG = Check(_CHECK.show, nan_is_text=True)
T = TypeVar("T")


def check(record: Any, where: str, skip: Collection[str] = ()) -> None:
    """Raise FormatError if a field of a dataclass, or of a nested dataclass, does not have its declared type.

    Fields named in ``skip`` are not checked.
    """
    for name, kind in keys_of(record.__class__)[0].items():
        if name not in skip:
            _raise_any(_CHECK, getattr(record, name), kind, where, name)


def check_json(value: Any, kind: Any, where: str) -> None:
    """Raise FormatError if a JSON value does not have an annotated type, such as a TypedDict."""
    _raise_any(_CHECK, value, kind, where)


def typed(kind: type[T], value: Any, where: str) -> T:
    """Return a JSON value as the annotated type, such as a dataclass with dataclasses in it; else raise FormatError.

    Unknown keys are ignored. The strings "nan" and "inf" are numbers, as in PerfLog.
    """
    _raise_any(_CHECK_PERFLOG, value, kind, where)
    record: T = made(value, kind)
    return record


def _raise_any(check: Check, value: Any, kind: Any, where: str, *at: str) -> None:
    for _, problem in check.problems(value, kind, at):
        raise FormatError(f"{where}: {problem}")
