"""Whether what was read from a file has the types that its class declares."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from pytest_flagperf.limits import LARGEST_INT

from .files import FormatError

_SHOWN = 40


def check(record: Any, where: str, besides: Collection[str] = ()) -> None:
    """Raise FormatError if a field of a dataclass, or of one inside it, has a value of another type than declared.

    Fields named in ``besides`` are not looked at.
    """
    kinds = _kinds(record.__class__)
    for name, kind in kinds.items():
        if name not in besides:
            for problem in _problems(getattr(record, name), kind, name):
                raise FormatError(f"{where}: {problem}")


def check_json(value: Any, kind: Any, where: str) -> None:
    """Raise FormatError if a value that was read from JSON is not of an annotated type, a TypedDict for example."""
    for problem in _problems(value, kind, ""):
        raise FormatError(f"{where}: {problem}")


@cache
def _kinds(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def _problems(value: Any, kind: Any, at: str) -> Iterator[str]:
    """One sentence for each value of a wrong type."""
    origin, inside = get_origin(kind), get_args(kind)
    if kind is Any:
        return
    if origin in (Union, types.UnionType):
        if all(any(_problems(value, each, at)) for each in inside):
            yield _sentence(value, kind, at)
    elif is_typeddict(kind) and isinstance(value, Mapping):
        yield from (f"{at}.{name} is missing".lstrip(".") for name in kind.__required_keys__ - value.keys())
        for name, its in get_type_hints(kind).items():
            if name in value:
                yield from _problems(value[name], its, f"{at}.{name}".lstrip("."))
    elif isinstance(kind, type) and is_dataclass(kind) and isinstance(value, kind):
        for name, its in _kinds(type(value)).items():
            yield from _problems(getattr(value, name), its, f"{at}.{name}")
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
