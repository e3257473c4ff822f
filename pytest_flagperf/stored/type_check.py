"""Check that values read from a file have the types that their class declares."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from pytest_flagperf.whole_numbers import LARGEST_INT

from .files import FormatError

_SHOWN = 40


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
