"""Read a TOML file into dataclasses; report all unknown keys, wrong types and missing keys at once."""

from __future__ import annotations

import json
import math
import re
import tomllib
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ..problems import Problems, kind, near, shown

T = TypeVar("T")

_HEADER = re.compile(r"\s*(\[\[?)\s*(.+?)\s*\]\]?\s*(#.*)?$")
_PART = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^.\s"']+))\s*\.?""")
_KEY = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_\-.])+)\s*=""")
_DECODE_LINE = re.compile(r"\(at line (\d+)")

KeyPath = tuple[str, ...]
_MAY_BE_SECRET = (("environment",), ("container",), ("uv",))
"""Tables whose values must not appear in messages."""
_WORDS = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}


class CatalogError(Problems):
    """A file of a suite or vendor that is invalid, or a name that does not exist."""


def read(cls: type[T], file: Path) -> T:
    """Return the file as a ``cls``; raise CatalogError with file and line of each problem."""
    text = _text(file)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = _DECODE_LINE.search(str(error))
        number = int(line[1]) if line else len(text.splitlines())
        raise CatalogError([f"{file}:{number}: {error}{_quoted(text, number)}"]) from None
    except (ValueError, RecursionError) as error:  # a number of too many digits, too deep a nesting
        raise CatalogError([f"{file}: cannot be read: {error}"]) from None
    reader = _TomlReader(file, _lines(text), [])
    value = reader.dataclass(cls, table, ())
    if reader.problems:
        raise CatalogError(reader.problems)
    return value  # type: ignore[no-any-return]


def _quoted(text: str, number: int) -> str:
    """Return the key of a line without its value, which may be a password."""
    line = text.splitlines()[number - 1 : number]
    name, equals, _ = line[0].strip().partition("=") if line else ("", "", "")
    return f": {name}= ..." if equals else ""


def where(file: Path, *at: str) -> str:
    """Return ``FILE:LINE`` of a key, or of its table if the key is missing."""
    return f"{file}:{_line(_lines(_text(file)), at)}"


def key_lines(file: Path) -> Mapping[KeyPath, int]:
    """Return the line of each table and key of a file."""
    return _lines(_text(file))


def with_number(text: str, at: KeyPath, value: float, file: Path) -> str:
    """Return a TOML text with another number under a key; comments and all other values stay.

    ``file`` is for the message if the key cannot be found or its value is not a number in the same line.
    """
    lines = text.splitlines(keepends=True)
    number = _line(_lines(text), at)
    changed = re.sub(rf"(\b{re.escape(at[-1])}\"?\s*=\s*)[-+\w.]+", rf"\g<1>{value!r}", lines[number - 1], count=1)
    new = "".join([*lines[: number - 1], changed, *lines[number:]])
    expected = tomllib.loads(text)
    table = expected
    for key in at[:-1]:
        table = table[key]
    table[at[-1]] = value
    if tomllib.loads(new) != expected:
        raise CatalogError([f"{file}:{number}: cannot change {_dotted(at)}; set it to {value!r} by hand and run again"])
    return new


def choice(file: Path, key: str, value: str, allowed: tuple[str, ...]) -> list[str]:
    """Return a problem if the value is not allowed."""
    if value in allowed:
        return []
    at = where(file, *key.split("."))
    return [f"{at}: {key} is {value!r}; allowed: {', '.join(allowed)}{near(value, list(allowed))}"]


def raise_if_any(problems: list[str]) -> None:
    if problems:
        raise CatalogError(problems)


def _line(lines: Mapping[KeyPath, int], at: KeyPath) -> int:
    return next((lines[at[:end]] for end in range(len(at), 0, -1) if at[:end] in lines), 1)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        raise CatalogError([f"{file}: not UTF-8: {error}"]) from None
    except OSError as error:
        raise CatalogError([f"{file}: cannot be read: {error.strerror}"]) from None


@dataclass(frozen=True)
class _TomlReader:
    """Converts TOML values to annotated types and collects problems; ``at`` is the path of a key."""

    file: Path
    lines: Mapping[KeyPath, int]
    problems: list[str]

    def convert(self, expected: Any, value: object, at: KeyPath) -> Any:
        origin, args = get_origin(expected), get_args(expected)
        if origin in (Union, types.UnionType):  # only X | None occurs, and TOML has no null
            return self.convert(args[0], value, at)
        if is_dataclass(expected):
            return self.dataclass(expected, value, at)
        if origin is tuple:
            return self._tuple(args[0], value, at)
        if origin is not None:
            return self._mapping(args[1], value, at)
        return self._plain(expected, value, at)

    def dataclass(self, cls: Any, value: object, at: KeyPath) -> Any:
        if not isinstance(value, dict):
            return self._refuse(at, value, "a table")
        hints, known = get_type_hints(cls), {field.name: field for field in fields(cls)}
        replaced: Mapping[str, str] = getattr(cls, "REPLACED_KEYS", {})
        for key in sorted(value.keys() - known.keys()):
            if key in replaced:
                self._note((*at, key, "0"), f"{_dotted((*at, key))}: {replaced[key]}")  # its first table
                continue
            allowed = f"; allowed: {', '.join(known)}"
            self._note((*at, key), f"{_dotted((*at, key))}: no such key{near(key, list(known)) or allowed}")
        for name, field in known.items():
            if name not in value and _is_required(field):
                self._note(at, f"{_dotted((*at, name))} is missing")
        given = {name: self.convert(hints[name], value[name], (*at, name)) for name in known if name in value}
        return None if self.problems else cls(**given)

    def _tuple(self, expected: Any, value: object, at: KeyPath) -> Any:
        if not isinstance(value, list):
            example = "" if at[:1] in _MAY_BE_SECRET else f", as in [{json.dumps(value, default=str)}]"
            example = f", as in [[{_dotted(at)}]]" if isinstance(value, dict) else example
            return self._refuse(at, value, f"a list{example}")
        return tuple(self.convert(expected, item, (*at, str(i))) for i, item in enumerate(value))

    def _mapping(self, expected: Any, value: object, at: KeyPath) -> Any:
        if not isinstance(value, dict):
            return self._refuse(at, value, "a table")
        if is_dataclass(expected) and (bare := [key for key, item in value.items() if not isinstance(item, dict)]):
            return self._note(
                at, f"{_dotted(at)} contains {', '.join(bare)}; expected tables only, as in [{_dotted(at)}.NAME]"
            )
        return {key: self.convert(expected, item, (*at, key)) for key, item in value.items()}

    def _plain(self, expected: Any, value: object, at: KeyPath) -> Any:
        if expected is float and type(value) is int:
            return float(value)
        if type(value) is not expected:
            return self._refuse(at, value, _WORDS[expected])
        if isinstance(value, float) and not math.isfinite(value):
            return self._refuse(at, value, "a finite number")
        return value

    def _refuse(self, at: KeyPath, value: object, expected: str) -> None:
        got = kind(value) if at[:1] in _MAY_BE_SECRET else shown(value)
        self._note(at, f"{_dotted(at)}: expected {expected}; got {got}")

    def _note(self, at: KeyPath, problem: str) -> None:
        self.problems.append(f"{self.file}:{_line(self.lines, at)}: {problem}")


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _dotted(at: KeyPath) -> str:
    return ".".join(at) or "the file"


def _lines(text: str) -> dict[KeyPath, int]:
    """Return the line of each table and key; the parser does not keep lines."""
    numbers: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _parts(header[2])
            if header[1] == "[[":
                table = (*table, str(_count(numbers, table)))
            numbers.setdefault(table, number)
        elif key := _KEY.match(line):
            numbers.setdefault((*table, *_parts(key[1])), number)
    return numbers


def _parts(dotted: str) -> KeyPath:
    return tuple("".join(groups) for groups in _PART.findall(dotted))


def _count(numbers: Mapping[KeyPath, int], table: KeyPath) -> int:
    number = 0
    while (*table, str(number)) in numbers:
        number += 1
    return number
