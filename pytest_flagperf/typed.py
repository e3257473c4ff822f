"""Check values by their annotations: JSON of files and hosts, TOML tables. Their readers add the place.

Beside annotations, a list of one kind stands for a list, and a dict for an object with these keys, of which a key with
"?" may be missing.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from flagperf_driver.node.logs.whole_numbers import LARGEST_INT

from .problems import near, shown

At = tuple[str, ...]
"""The keys that lead to a value, and its number in a list."""
_WORDS = {
    bool: "true or false",
    int: "a whole number of at most 64 bits",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "a table",
    None: "null",
    types.NoneType: "null",
}
_NAN_TEXTS = ("nan", "inf", "-inf")
_ANNOTATED: Any = type(Annotated[int, 0])
_UNIONS: Any = (types.UnionType, type(Union[int, str]))  # noqa: UP007 - the other way to write it
_PLAIN_KEY, _LONGEST_KEY = re.compile(r"[\w:/-]{1,60}", re.ASCII), 60


@dataclass(frozen=True)
class Rule:
    """A condition of a value beside its type, as in ``Annotated[int, Rule("a count", is_count)]``."""

    words: str
    fits: Callable[[Any], bool]


@dataclass(frozen=True)
class Either:
    """A value that has at least one of these kinds, for kinds that an annotation cannot have."""

    kinds: tuple[Any, ...]


def dotted(at: At) -> str:
    return ".".join(at)


@dataclass(frozen=True)
class Check:
    """Finds what does not fit; ``show`` writes a value; ``all_keys`` refuses keys that are not declared."""

    show: Callable[[At, object], str] = lambda _, value: shown(value)
    all_keys: bool = False
    nan_is_text: bool = False
    """The strings "nan", "inf" and "-inf" are numbers, as in PerfLog."""

    def problems(self, value: Any, kind: Any, at: At = ()) -> Iterator[tuple[At, str]]:
        """Yield the place of each value of another kind, and a sentence."""
        if self._fits(value, kind):  # most values do, and the functions below take five times as long
            return
        if isinstance(kind, dict):
            yield from self._object(value, kind, at)
            return
        origin, inside = get_origin(kind), get_args(kind)
        if origin is Annotated:
            if any(self.problems(value, inside[0], at)) or not inside[1].fits(value):
                yield self._wrong(value, inside[1].words, at)
        elif isinstance(kind, Either) or origin in (Union, types.UnionType):
            yield from self._either(value, kind.kinds if isinstance(kind, Either) else inside, at)
        elif is_typeddict(kind) or is_dataclass(kind):
            yield from self._object(value, kind, at)
        elif isinstance(kind, list) or (origin is not None and issubclass(origin, Sequence)):
            if isinstance(value, (list, tuple)):
                item_kind = kind[0] if isinstance(kind, list) else inside[0]
                for number, item in enumerate(value):
                    yield from self.problems(item, item_kind, (*at, str(number)))
            else:
                example = f"[[{dotted(at)}]]" if isinstance(value, Mapping) else f"[{self.show(at, value)}]"
                yield self._wrong(value, f"a list, as in {example}" if self.all_keys else "a list", at)
        elif origin is not None and issubclass(origin, Mapping):
            if isinstance(value, Mapping):
                for key, item in value.items():
                    yield from self.problems(item, inside[1], (*at, _key(key)))
            else:
                yield self._wrong(value, _WORDS[dict], at)
        elif not (_is_a(value, kind) or (self.nan_is_text and kind is float and value in _NAN_TEXTS)):
            yield self._wrong(value, _words(kind), at)

    def _either(self, value: Any, kinds: Sequence[Any], at: At) -> Iterator[tuple[At, str]]:
        if value is None and (types.NoneType in kinds or None in kinds):
            return
        others = [kind for kind in kinds if kind not in (None, types.NoneType)]
        found = [list(self.problems(value, kind, at)) for kind in others]
        if all(found):
            together = len(others) > 1 and all(isinstance(kind, type) and kind in _WORDS for kind in others)
            yield from [self._wrong(value, " or ".join(map(_words, others)), at)] if together else found[-1]

    def _object(self, value: Any, kind: Any, at: At) -> Iterator[tuple[At, str]]:
        if is_dataclass(kind) and isinstance(value, kind):  # type: ignore[arg-type]
            value = {field.name: getattr(value, field.name) for field in fields(kind)}
        if not isinstance(value, Mapping):
            yield self._wrong(value, _WORDS[dict], at)
            return
        declared, required = keys_of(kind)
        for key in sorted(value.keys() - declared.keys()) if self.all_keys else ():
            replaced: Mapping[str, str] = getattr(kind, "REPLACED_KEYS", {})
            allowed = f"; allowed: {', '.join(declared)}"
            why = replaced.get(key) or f"no such key{near(key, declared) or allowed}"
            yield (*at, key), f"{dotted((*at, _key(key)))}: {why}"
        for key in required:
            if key not in value:
                yield at, f"{dotted((*at, key))} is missing"
        for key, inner in declared.items():
            if key in value:
                yield from self.problems(value[key], inner, (*at, key))

    def _fits(self, value: Any, kind: Any) -> bool:
        """Return True if a value is of one of the kinds that most values have; a value may be valid without it."""
        if type(kind) is type:
            if type(value) is int and (kind is int or kind is float):
                return abs(value) <= LARGEST_INT
            if kind in _WORDS:
                return type(value) is kind or (self.nan_is_text and kind is float and value in _NAN_TEXTS)
            return is_dataclass(kind) and type(value) is dict and self._fits_class(value, kind)
        if type(kind) is _ANNOTATED:
            return self._fits(value, kind.__origin__) and kind.__metadata__[0].fits(value)
        if type(kind) is dict:
            if type(value) is not dict or self.all_keys:
                return False
            for key, inner in kind.items():
                name = key[:-1] if key[-1] == "?" else key
                if not (self._fits(value[name], inner) if name in value else name is not key):
                    return False
            return True
        if type(kind) is list:
            return type(value) is list and all(self._fits(item, kind[0]) for item in value)
        if type(kind) is Either or type(kind) in _UNIONS:
            return any(self._fits(value, one) for one in (kind.kinds if type(kind) is Either else kind.__args__))
        if type(kind) is types.GenericAlias and kind.__origin__ is tuple:
            return type(value) is list and all(self._fits(item, kind.__args__[0]) for item in value)
        if type(kind) is types.GenericAlias and kind.__origin__ is Mapping:
            return type(value) is dict and all(self._fits(item, kind.__args__[1]) for item in value.values())
        return kind is Any or (kind is None and value is None)

    def _fits_class(self, value: Mapping[str, Any], kind: Any) -> bool:
        declared, required = _keys_of_class(kind)
        if self.all_keys and not value.keys() <= declared.keys():
            return False
        return all(map(value.__contains__, required)) and all(
            self._fits(item, declared[key]) for key, item in value.items() if key in declared
        )

    def _wrong(self, value: Any, expected: str, at: At) -> tuple[At, str]:
        return at, f"{dotted(at) or 'the value'} is {self.show(at, value)}; expected {expected}"


def keys_of(kind: Any) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Return the keys of an object with their kinds, and the keys that it needs."""
    if isinstance(kind, dict):
        return {key.rstrip("?"): kind[key] for key in kind}, [key for key in kind if not key.endswith("?")]
    return _keys_of_class(kind)


@cache
def _keys_of_class(kind: Any) -> tuple[Mapping[str, Any], Sequence[str]]:
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        return get_type_hints(kind), sorted(kind.__required_keys__)
    needed = [one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING]
    return {one.name: hints[one.name] for one in fields(kind)}, needed


def made(value: Any, kind: Any) -> Any:
    """Return a checked value as its kind: tables as dataclasses, lists as tuples, numbers as float."""
    return _maker(kind)(value)


@cache  # looking at a kind takes longer than making a value of it
def _maker(kind: Any) -> Callable[[Any], Any]:
    """Return the function that makes a checked value its kind."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType, Annotated):  # only X | None occurs
        return _maker(next(member for member in inside if member is not types.NoneType))
    if is_dataclass(kind):

        def make_class(value: Any) -> Any:
            if value is None or isinstance(value, kind):  # type: ignore[arg-type]
                return value
            makers = _makers_of_class(kind)  # type: ignore[arg-type]
            return kind(**{key: makers[key](item) for key, item in value.items() if key in makers})  # type: ignore[operator]

        return make_class
    if origin is tuple:
        make = _maker(inside[0])
        return lambda value: None if value is None else tuple(map(make, value))
    if origin is not None and issubclass(origin, Mapping):
        make = _maker(inside[1])
        return lambda value: None if value is None else {key: make(item) for key, item in value.items()}
    if kind is float or _is_choice(kind):
        return lambda value: None if value is None else kind(value)
    return lambda value: value


@cache
def _makers_of_class(kind: Any) -> Mapping[str, Callable[[Any], Any]]:
    return {key: _maker(inner) for key, inner in keys_of(kind)[0].items()}


def _is_a(value: Any, kind: Any) -> bool:
    if kind in (int, float):
        number = isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
        return number and (isinstance(value, float) or abs(value) <= LARGEST_INT)
    if _is_choice(kind):
        return value in list(kind)
    return value is None if kind is None else isinstance(value, kind)


def _is_choice(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _words(kind: Any) -> str:
    return _WORDS.get(kind) or str(getattr(kind, "__name__", kind))


def _key(key: object) -> str:
    """Return a key of a table for a message; a host may send any text."""
    text = str(key)
    return text if _PLAIN_KEY.fullmatch(text) else ascii(text[:_LONGEST_KEY])
