"""Values that are read from a file get the types that their class declares, or are refused."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from pytest_flagperf.whole_numbers import LARGEST_INT

from .files import FormatError

_SHOWN = 40
T = TypeVar("T")


def check(record: Any, where: str, skip: Collection[str] = ()) -> None:
    """Raise FormatError if a field of a dataclass, or of a nested dataclass, does not have its declared type.

    Fields named in ``skip`` are not checked.
    """
    kinds = _kinds(record.__class__)
    for name, kind in kinds.items():
        if name not in skip:
            for problem in _problems(getattr(record, name), kind, name):
                raise FormatError(f"{where}: {problem}")


def check_json(value: Any, kind: Any, where: str) -> None:
    """Raise FormatError if a JSON value does not have an annotated type, such as a TypedDict."""
    for problem in _problems(value, kind, ""):
        raise FormatError(f"{where}: {problem}")


def typed(kind: type[T], value: Any, where: str) -> T:
    """Return a JSON value as the annotated type, such as a dataclass with dataclasses in it; else raise FormatError.

    Unknown keys are ignored. The strings "nan" and "inf" are numbers, as in PerfLog.
    """
    try:
        made: T = _typed(value, kind, "")
    except _WrongType as problem:
        raise FormatError(f"{where}: {problem}") from None
    return made


class _WrongType(ValueError):
    """A value of another type."""


def _typed(value: Any, kind: Any, at: str) -> Any:
    origin, inside = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        (member,) = (each for each in inside if each is not types.NoneType)
        return None if value is None else _typed(value, member, at)
    if is_dataclass(kind):
        return _record(value, kind, at)
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_typed(item, inside[0], f"{at}[]") for item in value)
    if origin is not None and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return {name: _typed(item, inside[1], f"{at}.{name}") for name, item in value.items()}
    if kind is float and value in ("nan", "inf", "-inf"):
        return float(value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value) if value in list(kind) else _refuse(value, kind, at)
    for problem in _problems(value, kind, at):
        raise _WrongType(problem)
    return float(value) if kind is float else value


def _record(value: Any, kind: Any, at: str) -> Any:
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        _refuse(value, dict, at)
    below = f"{at}." if at else ""
    for field in fields(kind):
        if field.name not in value and field.default is MISSING and field.default_factory is MISSING:
            raise _WrongType(f"{below}{field.name} is missing")
    return kind(
        **{
            name: _typed(value[name], declared, f"{below}{name}")
            for name, declared in _kinds(kind).items()
            if name in value
        }
    )


def _refuse(value: Any, kind: Any, at: str) -> NoReturn:
    raise _WrongType(_sentence(value, kind, at))


@cache
def _kinds(cls: Any) -> dict[str, Any]:
    hints = _hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def _problems(value: Any, kind: Any, at: str) -> Iterator[str]:
    """Yield a sentence for each value of another type."""
    origin, inside = get_origin(kind), get_args(kind)
    if kind is Any:
        return
    if origin in (Union, types.UnionType):
        if all(any(_problems(value, member, at)) for member in inside):
            yield _sentence(value, kind, at)
    elif is_typeddict(kind) and isinstance(value, Mapping):
        yield from (f"{at}.{name} is missing".lstrip(".") for name in kind.__required_keys__ - value.keys())
        for name, declared in _hints(kind).items():
            if name in value:
                yield from _problems(value[name], declared, f"{at}.{name}".lstrip("."))
    elif isinstance(kind, type) and is_dataclass(kind) and isinstance(value, kind):
        for name, declared in _kinds(type(value)).items():
            yield from _problems(getattr(value, name), declared, f"{at}.{name}")
    elif not isinstance(value, _accepted(origin or kind)) or (isinstance(value, bool) and kind is not bool):
        yield _sentence(value, kind, at)
    elif isinstance(value, int) and abs(value) > LARGEST_INT:
        yield f"{at} is an integer of {value.bit_length()} bits; expected at most 64"
    elif origin is not None and issubclass(origin, Mapping):
        for name, item in value.items():
            yield from _problems(item, inside[1], f"{at}.{name}")
    elif origin is not None and issubclass(origin, Sequence):
        for item in value:
            yield from _problems(item, inside[0], f"{at}[]")


def _accepted(kind: Any) -> Any:
    return (int, float) if kind is float else Mapping if is_typeddict(kind) else kind


def _sentence(value: Any, kind: Any, at: str) -> str:
    name = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind).replace("NoneType", "None")
    return f"{at} is {value!r:.{_SHOWN}}; expected {name}"
