"""Check values by their annotations: JSON of files and hosts, TOML, configs in Python. Their readers add the place.

Beside annotations, a list of one kind stands for a list, and a dict for an object with these keys, of which a key with
"?" may be missing.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints, is_typeddict

from flagperf_driver.node.logs.whole_numbers import LARGEST_INT

from .problems import kind as a_kind
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
_PYTHON_WORDS = {**_WORDS, bool: "True or False", int: "a whole number", dict: "a dict", types.NoneType: "None"}
_NAN_TEXTS = ("nan", "inf", "-inf")
_UNIONS = (Union, types.UnionType)
_TABLES = (dict, Mapping)  # a dict is recognized faster
_Make = Callable[[Any], Any]
_PLAIN_KEY, _LONGEST_KEY = re.compile(r"[\w:/-]{1,60}", re.ASCII), 60


@dataclass(frozen=True)
class Rule:
    """A condition of a made value beside its type, as in ``Annotated[int, Rule("a count", is_count)]``."""

    words: str
    fits: Callable[[Any], object]


@dataclass(frozen=True)
class Either:
    """A value that has at least one of these kinds, for kinds that an annotation cannot have."""

    kinds: tuple[Any, ...]


class Misfit(Exception):
    """A value that does not have its kind; ``Check.problems`` says why."""


def dotted(at: At) -> str:
    return ".".join(at)


@dataclass(frozen=True)
class Check:
    """Finds what does not fit; ``show`` writes a value; ``all_keys`` refuses keys that are not declared.

    It keeps a function for each kind that it was asked for: kinds are constants.
    """

    show: Callable[[At, object], str] = lambda _, value: shown(value)
    all_keys: bool = False
    nan_is_text: bool = False
    """The strings "nan", "inf" and "-inf" are numbers, as in PerfLog."""
    python: bool = False
    """Problems have the words of Python: True, None and 'a' or 'b'."""
    _makers: dict[int, tuple[Any, _Make]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def made(self, value: Any, kind: Any) -> Any:
        """Return a value as its kind: tables as dataclasses, lists as tuples, numbers as float; else raise Misfit."""
        return self._maker(kind)(value)

    def expected(self, value: Any, kind: Any) -> str | None:
        """Return what is expected instead of a value, with the value that may be meant; None for a valid value."""
        try:
            self.made(value, kind)
        except Misfit:
            return self._expected(value, kind)
        return None

    def problems(self, value: Any, kind: Any, at: At = ()) -> Iterator[tuple[At, str]]:
        """Yield the place of each value of another kind, and a sentence."""
        try:
            self.made(value, kind)
        except Misfit:
            yield from self._problems(value, kind, at)

    def _problems(self, value: Any, kind: Any, at: At) -> Iterator[tuple[At, str]]:
        origin, inside = get_origin(kind), get_args(kind)
        if origin in (Annotated, Literal):
            yield self._wrong(value, self._expected(value, kind), at)
        elif isinstance(kind, Either) or origin in _UNIONS:
            kinds, _ = _without_null(kind)
            if len(kinds) > 1 and all(isinstance(one, type) and one in _WORDS for one in kinds):
                yield self._wrong(value, self._expected(value, kind), at)
            else:
                yield from self._problems(value, kinds[-1], at)
        elif _has_keys(kind):
            yield from self._object(value, kind, at)
        elif isinstance(kind, list) or (origin is not None and issubclass(origin, Sequence)):
            if isinstance(value, (list, tuple)):
                item_kind = kind[0] if isinstance(kind, list) else inside[0]
                for number, item in enumerate(value):
                    yield from self.problems(item, item_kind, (*at, str(number)))
            else:
                example = f"[[{dotted(at)}]]" if isinstance(value, Mapping) else f"[{self.show(at, value)}]"
                yield self._wrong(value, f"a list, as in {example}" if self.all_keys else "a list", at)
        elif origin is not None and issubclass(origin, Mapping) and isinstance(value, Mapping):
            for key, item in value.items():
                yield from self.problems(item, inside[1], (*at, _key(key)))
        else:
            yield self._wrong(value, self._expected(value, kind), at)

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

    def _maker(self, kind: Any) -> _Make:
        """Return the function for values of a kind, since looking at the kind takes longer than looking at a value."""
        known = self._makers.get(id(kind))
        if known is None:  # the kind is kept, so that no other object gets its id
            known = self._makers[id(kind)] = kind, self._new_maker(kind)
        return known[1]

    def _new_maker(self, kind: Any) -> _Make:
        origin, inside = get_origin(kind), get_args(kind)
        if kind is Any:
            return lambda value: value
        if origin is Annotated:
            make, fits = self._maker(inside[0]), inside[1].fits
            return lambda value: made if fits(made := make(value)) else _misfit()
        if origin is Literal:
            return lambda value: value if value in inside else _misfit()
        if isinstance(kind, Either) or origin in _UNIONS:
            kinds, nullable = _without_null(kind)
            return _first_of([self._maker(one) for one in kinds], nullable)
        if _has_keys(kind):
            return self._object_maker(kind)
        if isinstance(kind, list) or (origin is not None and issubclass(origin, Sequence)):
            make = self._maker((kind if isinstance(kind, list) else inside)[0])
            make_list = tuple if origin is tuple else list
            return lambda value: make_list(map(make, value)) if isinstance(value, (list, tuple)) else _misfit()
        if origin is not None and issubclass(origin, Mapping):
            if inside[1] is Any:
                return lambda value: value if isinstance(value, _TABLES) else _misfit()
            make = self._maker(inside[1])
            return lambda value: (
                {key: make(item) for key, item in value.items()} if isinstance(value, _TABLES) else _misfit()
            )
        return _plain(kind, _NAN_TEXTS if kind is float and self.nan_is_text else ())

    def _object_maker(self, kind: Any) -> _Make:
        keys, required = keys_of(kind)
        makers, needed, all_keys = {key: self._maker(keys[key]) for key in keys}, frozenset(required), self.all_keys
        make_record: Any = kind if is_dataclass(kind) else None

        def make(value: Any) -> Any:
            if not isinstance(value, _TABLES):
                if make_record is None or not isinstance(value, make_record):
                    raise Misfit
                make({name: getattr(value, name) for name in makers})
                return value
            made = {key: makers[key](item) for key, item in value.items() if key in makers}
            if not made.keys() >= needed or (all_keys and len(made) < len(value)):
                raise Misfit
            return value if make_record is None else make_record(**made)

        return make

    def _expected(self, value: Any, kind: Any) -> str:
        hint = near(value, map(str, choices_of(kind))) if isinstance(value, str) else ""
        if isinstance(value, float) and int in (kind, *get_args(kind)) and value.is_integer():
            hint = f"; write {int(value)}" if abs(value) <= LARGEST_INT else ""
        return self._words(kind) + hint

    def _words(self, kind: Any) -> str:
        origin, inside = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return str(inside[1].words)
        if origin is Literal:
            return " or ".join(map(repr, inside)) if self.python else f"one of {', '.join(map(str, inside))}"
        if isinstance(kind, Either) or origin in _UNIONS:
            kinds, nullable = _without_null(kind)
            words = [self._words(one) for one in sorted(kinds, key=lambda one: not choices_of(one))]
            return " or ".join([*words, "None"] if nullable and self.python else words)
        if origin is not None:
            kind = list if issubclass(origin, Sequence) else dict
        return (_PYTHON_WORDS if self.python else _WORDS).get(kind) or str(getattr(kind, "__name__", kind))

    def _wrong(self, value: Any, expected: str, at: At) -> tuple[At, str]:
        return at, f"{dotted(at) or 'the value'} is {self.show(at, value)}; expected {expected}"


def read_table(
    kind: type, table: Mapping[str, Any], name: str, secret: Sequence[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Return the valid values of a table of the settings by key, and the problems of the others.

    ``kind`` is the dataclass of the table. No message has a value of a ``secret`` key, or one with an @, which may
    follow a password.
    """

    def show(at: At, value: object) -> str:
        return a_kind(value) if at[1] in secret or (isinstance(value, str) and "@" in value) else shown(value)

    check = Check(show, all_keys=True)
    values, problems, (known, _) = dict[str, Any](), list[str](), keys_of(kind)
    for key, value in table.items():
        if key not in known:
            problems.append(f"{name}.{key}: unknown setting{near(key, known)}; allowed are {', '.join(known)}")
        elif found := [problem for _, problem in check.problems(value, known[key], (name, key))]:
            problems += found
        else:
            values[key] = check.made(value, known[key])
    return values, problems


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
    keys = [one for one in fields(kind) if one.name not in getattr(kind, "NOT_KEYS", ())]
    needed = [one.name for one in keys if one.default is MISSING and one.default_factory is MISSING]
    return {one.name: hints[one.name] for one in keys}, needed


def _has_keys(kind: Any) -> bool:
    return isinstance(kind, dict) or is_typeddict(kind) or (isinstance(kind, type) and is_dataclass(kind))


def choices_of(kind: Any) -> list[Any]:
    """Return the values that a kind lists in a Literal."""
    return [choice for part in (kind, *get_args(kind)) if get_origin(part) is Literal for choice in get_args(part)]


def _without_null(kind: Any) -> tuple[list[Any], bool]:
    """Return the kinds of which a value has one, and whether it may be null."""
    kinds = kind.kinds if isinstance(kind, Either) else get_args(kind)
    others = [one for one in kinds if one not in (None, types.NoneType)]
    return others, len(others) < len(kinds)


def _misfit() -> NoReturn:
    raise Misfit


def _first_of(makers: Sequence[_Make], nullable: bool) -> _Make:
    *first, last = makers

    def make_first(value: Any) -> Any:
        if value is None and nullable:
            return None
        for make in first:
            with suppress(Misfit):
                return make(value)
        return last(value)

    return make_first


def _plain(kind: Any, others: Sequence[str]) -> _Make:
    make_value = kind if kind is float or _is_choice(kind) else lambda value: value

    def make(value: Any) -> Any:
        if type(value) is kind and not (kind is int and abs(value) > LARGEST_INT):
            return value
        return make_value(value) if _is_a(value, kind) or value in others else _misfit()

    return make


def _is_a(value: Any, kind: Any) -> bool:
    if kind in (int, float):
        number = isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
        return number and (isinstance(value, float) or abs(value) <= LARGEST_INT)
    if _is_choice(kind):
        return value in list(kind)
    return value is None if kind is None else isinstance(value, kind)


def _is_choice(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _key(key: object) -> str:
    """Return a key of a table for a message; a host may send any text."""
    text = str(key)
    return text if _PLAIN_KEY.fullmatch(text) else ascii(text[:_LONGEST_KEY])
