"""Check that values read from a file have the types that their class declares."""

from __future__ import annotations

from typing import Any, TypeVar

from pytest_flagperf.problems import shown
from pytest_flagperf.typed import Check, Misfit

from .files import FormatError

_SHOWN = 40
_CHECK = Check(lambda _, value: shown(value)[:_SHOWN])
_CHECK_PERFLOG = Check(_CHECK.show, nan_is_text=True)
T = TypeVar("T")


def check(value: Any, kind: Any, where: str) -> None:
    """Raise FormatError if a value does not have an annotated type, such as a TypedDict or a dataclass."""
    _made(_CHECK, value, kind, where)


def typed(kind: type[T], value: Any, where: str) -> T:
    """Return a JSON value as the annotated type, such as a dataclass with dataclasses in it; else raise FormatError.

    Unknown keys are ignored. The strings "nan" and "inf" are numbers, as in PerfLog.
    """
    record: T = _made(_CHECK_PERFLOG, value, kind, where)
    return record


def _made(check: Check, value: Any, kind: Any, where: str) -> Any:
    try:
        return check.made(value, kind)
    except Misfit:
        _, problem = next(check.problems(value, kind))
        raise FormatError(f"{where}: {problem}") from None
