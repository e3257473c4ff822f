"""Failures that are known beforehand: a table [[expected]] each, in flagperf.toml or a vendor's vendor.toml."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase

from .case import without_repeat
from .problems import near, shown

_FORM = "model:framework:hardware:nnodes:nproc or that and :repeat, with * for what does not matter"
_WILD = "*?["


@dataclass(frozen=True)
class Expected:
    """``case`` and ``verdict`` are patterns as of file names; a case matches with and without its number of rounds."""

    case: str
    verdict: str
    reason: str

    def is_about(self, case: str) -> bool:
        return any(fnmatchcase(name, self.case) for name in (case, without_repeat(case)))

    def judges(self, verdict: str) -> bool:
        return fnmatchcase(verdict, self.verdict)


@dataclass(frozen=True)
class ExpectedInFile:
    """An expectation and the file it stands in."""

    expected: Expected
    file: str


def problems(expected: Expected) -> Iterator[str]:
    """What cannot be meant."""
    if not expected.case.strip() or (not set(_WILD) & set(expected.case) and expected.case.count(":") not in (4, 5)):
        yield f"case = {expected.case!r} is no case; allowed is {_FORM}"
    if not expected.verdict.strip():
        yield "verdict is empty; allowed is a verdict's name, as efficiency or target, or * for every one"
    if not expected.reason.strip():
        yield "reason is empty; say why the failure is expected, it stands in every report"


def of_tables(given: object, where: str, told: list[str]) -> tuple[Expected, ...]:
    """The tables of a settings file; what is wrong with them is told."""
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        told.append(f"{where}: expected = {shown(given)}: tables are wanted, [[expected]]")
        return ()
    found = []
    for number, item in enumerate(given, 1):
        place = f"{where}: [[expected]] {number}"
        wrong = [f"{place}: {text}" for text in _of_table(item)]
        if not wrong:
            found.append(Expected(**item))
            wrong = [f"{place}: {text}" for text in problems(found[-1])]
        told += wrong
    return tuple(found)


def _of_table(item: Mapping[str, object]) -> Iterator[str]:
    known = [field.name for field in fields(Expected)]
    for name in sorted(item.keys() - set(known)):
        yield f"no such key: {name!r}{near(name, known) or _allowed(known)}"
    for name in known:
        if name not in item:
            yield f"{name} is missing"
        elif not isinstance(item[name], str):
            yield f"{name} = {shown(item[name])}: a string is wanted"


def _allowed(names: Iterable[str]) -> str:
    return f"; allowed: {', '.join(names)}"
