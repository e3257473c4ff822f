"""Expected failures, which users list in flagperf.toml, and known problems, which vendors state in vendor.toml."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from .case import without_repeat
from .problems import shown
from .typed import Check

_FORM = "model:framework:hardware:nnodes:nproc, optionally with :repeat; * matches any text"
_WILD = "*?["
_CHECK = Check(all_keys=True)


@dataclass(frozen=True)
class CasePattern:
    """A statement about all cases that match a pattern, with or without their number of rounds."""

    case: str
    """Pattern of the case, such as ``*:pytorch:*:2:8``."""

    def is_about(self, case: str) -> bool:
        return any(fnmatchcase(name, self.case) for name in (case, without_repeat(case)))


@dataclass(frozen=True)
class Expected(CasePattern):
    """A failure that excuses a verdict."""

    verdict: str
    """Pattern of the verdict, such as ``efficiency``."""
    reason: str
    """The reason, which every report shows."""

    def judges(self, verdict: str) -> bool:
        return fnmatchcase(verdict, self.verdict)


@dataclass(frozen=True)
class ExpectedInFile:
    """An expected failure and the file that contains it."""

    expected: Expected
    file: str


@dataclass(frozen=True)
class KnownProblem(CasePattern):
    """A problem that a vendor states of its cases: every report shows it, and it excuses no verdict."""

    text: str
    """The problem in a sentence, which every report shows."""

    def problems(self) -> Iterator[str]:
        """Yield the problems of a table that could never match or says nothing."""
        yield from _pattern_problems(self.case)
        if not self.text.strip():
            yield "text is empty; expected the problem in a sentence, for the reports"


def _pattern_problems(case: str) -> Iterator[str]:
    if not case.strip() or (not set(_WILD) & set(case) and case.count(":") not in (4, 5)):
        yield f"case = {case!r}: expected {_FORM}"


def problems(expected: Expected) -> Iterator[str]:
    """Yield the problems of a table that could never match."""
    yield from _pattern_problems(expected.case)
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
        invalid = [f"{place}: {text}" for _, text in _CHECK.problems(item, Expected)]
        if not invalid:
            tables.append(Expected(**item))
            invalid = [f"{place}: {text}" for text in problems(tables[-1])]
        messages += invalid
    return tuple(tables)
