"""Read a TOML file into dataclasses; report all unknown keys, wrong types and missing keys at once."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..problems import Problems, kind, near, shown
from ..typed import Check, dotted

T = TypeVar("T")

_HEADER = re.compile(r"\s*(\[\[?)\s*(.+?)\s*\]\]?\s*(#.*)?$")
_PART = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^.\s"']+))\s*\.?""")
_KEY = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_\-.])+)\s*=""")
_DECODE_LINE = re.compile(r"\(at line (\d+)")

KeyPath = tuple[str, ...]
_MAY_BE_SECRET = (("environment",), ("container",), ("uv",))
"""Tables whose values must not appear in messages."""
_CHECK = Check(lambda at, value: kind(value) if at[:1] in _MAY_BE_SECRET else shown(value), all_keys=True)


class CatalogError(Problems):
    """A file of a suite or vendor that is invalid, or a name that does not exist."""


def read(cls: type[T], file: Path) -> T:
    """Return the file as a ``cls``; raise CatalogError with file and line of each problem."""
    text = _text(file)
    table = _table(file, text)
    lines = _lines(text)
    raise_if_any([f"{file}:{_line(lines, at)}: {problem}" for at, problem in _problems(cls, table)])
    return _CHECK.made(table, cls)  # type: ignore[no-any-return]


def read_key(file: Path, key: str, default: str) -> str:
    """Return a key of the file that selects the class of the rest."""
    value: str = _table(file, _text(file)).get(key, default)
    raise_if_any([f"{where(file, key)}: {problem}" for _, problem in _CHECK.problems(value, str, (key,))])
    return value


def _table(file: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = _DECODE_LINE.search(str(error))
        number = int(line[1]) if line else len(text.splitlines())
        raise CatalogError([f"{file}:{number}: {error}{_quoted(text, number)}"]) from None
    except (ValueError, RecursionError) as error:  # a number of too many digits, too deep a nesting
        raise CatalogError([f"{file}: cannot be read: {error}"]) from None


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


def line_of(text: str, at: KeyPath) -> int:
    """Return the line of a key of a TOML text, or of its table if the key is missing."""
    return _line(_lines(text), at)


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
    places = [(*at, "0"), *(at[:end] for end in range(len(at), 0, -1))]  # of a list of tables, the first
    return next((lines[place] for place in places if place in lines), 1)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        raise CatalogError([f"{file}: not UTF-8: {error}"]) from None
    except OSError as error:
        raise CatalogError([f"{file}: cannot be read: {error.strerror}"]) from None


def _problems(cls: type, table: dict[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Yield the place and a sentence for each value that the class does not allow."""
    yield from _CHECK.problems(table, cls)
    yield from ((at, f"{dotted(at)} is {value!r}; expected a finite number") for at, value in _not_finite(table))


def _not_finite(value: object, at: KeyPath = ()) -> Iterator[tuple[KeyPath, float]]:
    if isinstance(value, float) and not math.isfinite(value):
        yield at, value
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _not_finite(item, (*at, str(key)))


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
