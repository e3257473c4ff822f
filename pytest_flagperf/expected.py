"""Known failures: tables [[expected]] in flagperf.toml or a vendor's vendor.toml."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase

from .case import without_repeat
from .problems import near, shown

_FORM = "model:framework:hardware:nnodes:nproc, optionally with :repeat; * matches any text"
_WILD = "*?["


@dataclass(frozen=True)
class Expected:
    """A known failure; ``case`` and ``verdict`` are patterns such as ``*``. The number of rounds may be left out."""

    case: str
    """Pattern of the case, such as ``*:pytorch:*:2:8``."""
    verdict: str
    """Pattern of the verdict, such as ``efficiency``."""
    reason: str
    """The reason, which every report shows."""

    def is_about(self, case: str) -> bool:
        return any(fnmatchcase(name, self.case) for name in (case, without_repeat(case)))

    def judges(self, verdict: str) -> bool:
        return fnmatchcase(verdict, self.verdict)


@dataclass(frozen=True)
class ExpectedInFile:
    """An expected failure and the file that contains it."""

    expected: Expected
    file: str


def problems(expected: Expected) -> Iterator[str]:
    """Yield the problems of a table that could never match."""
    if not expected.case.strip() or (not set(_WILD) & set(expected.case) and expected.case.count(":") not in (4, 5)):
        yield f"case = {expected.case!r}: expected {_FORM}"
    if not expected.verdict.strip():
        yield "verdict is empty; expected a verdict such as efficiency or target, or * for all"
    if not expected.reason.strip():
        yield "reason is empty; expected why the failure is known, for the reports"


def of_tables(given: object, where: str, messages: list[str]) -> tuple[Expected, ...]:
    """Return the tables of a settings file, and add the problems to ``messages``."""
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        messages.append(f"{where}: expected = {shown(given)}: expected tables, as in [[expected]]")
        return ()
    tables = []
    for number, item in enumerate(given, 1):
        place = f"{where}: [[expected]] {number}"
        invalid = [f"{place}: {text}" for text in _of_table(item)]
        if not invalid:
            tables.append(Expected(**item))
            invalid = [f"{place}: {text}" for text in problems(tables[-1])]
        messages += invalid
    return tuple(tables)


def _of_table(item: Mapping[str, object]) -> Iterator[str]:
    known = [field.name for field in fields(Expected)]
    for name in sorted(item.keys() - set(known)):
        yield f"no such key: {name!r}{near(name, known) or _allowed(known)}"
    for name in known:
        if name not in item:
            yield f"{name} is missing"
        elif not isinstance(item[name], str):
            yield f"{name} = {shown(item[name])}: expected a string"


def _allowed(names: Iterable[str]) -> str:
    return f"; allowed: {', '.join(names)}"
