"""What a run closes with, wherever it is told: how each case stands, why, and the verdict in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import shorten, wrap

from pytest_flagperf.report.terminal.table import console_table
from pytest_flagperf.results.store import CaseResult, Run
from pytest_flagperf.results.units import count
from pytest_flagperf.results.verdicts import Kind, Verdict, failed, is_regression

FAILED, REGRESSED, UNFINISHED, EXPECTED, PASSED = "failed", "regressed", "not finished", "failed as expected", "passed"
STATES = (FAILED, REGRESSED, UNFINISHED, EXPECTED, PASSED)
"""How a case can stand, the worst first."""
BAD = (FAILED, REGRESSED)
NARROWEST = 80
EVERYTHING = 10_000
_TOLD_AT_MOST = 10
_SHORT_AT_MOST = 2
_SHORT = 120
_INTERRUPTED = 2


@dataclass(frozen=True)
class Told:
    """One case: how it stands, and each reason, once, as a sentence."""

    case: str
    state: str
    failures: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    """The same in a few words each, for where the sentences stand already."""
    expected: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    vendor_code: str = ""
    """What the vendor brings beside its config, in a few words."""


def tell(case: CaseResult, *, interrupted: bool = False) -> Told:
    """How a case stands; one that an interrupted run did not get through is no failure."""
    bad = failed([verdict for verdicts in case.verdicts.values() for verdict in verdicts])
    told_of = [verdict for verdict in bad if verdict.expected is not None]
    unexpected = [verdict for verdict in bad if verdict.expected is None]
    broken = [failure.sentence for outcome in case.outcomes for failure in outcome.failures]
    known = {verdict.sentence for verdict in told_of}
    reasons = {verdict.sentence: _in_short(verdict) for verdict in unexpected}
    reasons |= {text: text for text in broken if text not in {*reasons, *known}}
    state = (
        REGRESSED
        if is_regression(unexpected) and not broken
        else FAILED
        if reasons
        else EXPECTED
        if told_of
        else PASSED
    )
    if interrupted and not unexpected and (broken or not case.verdicts or len(case.outcomes) < case.repeat):
        state, reasons = UNFINISHED, {}
    elif not case.verdicts and not broken:
        state, reasons = FAILED, {"nothing was judged": "nothing was judged"}
    expected = [f"{verdict.sentence} (expected: {verdict.expected})" for verdict in told_of]
    return Told(
        case.case,
        state,
        _once(reasons),
        _once(reasons.values()),
        _once(expected),
        _once(_warnings(case)),
        case.vendor_code,
    )


def beside(told: Told) -> str:
    """A case's state, and the vendor code that stands beside it: "passed with acme's own step backward"."""
    return f"{told.state} with {told.vendor_code}" if told.vendor_code else told.state


@dataclass(frozen=True)
class Closing:
    """Everything that is told at a run's end; ``not_run``: a sentence for each case that left nothing."""

    cases: tuple[CaseResult, ...] = ()
    told: tuple[Told, ...] = ()
    not_run: tuple[str, ...] = ()
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()

    def verdict(self, width: int = EVERYTHING) -> str:
        """The run in one line of at most so many columns; what does not fit is left out, the least needed first."""
        bad = sorted((one for one in self.told if one.state in BAD), key=lambda one: BAD.index(one.state))
        case = f"{'first ' if len(bad) > 1 else ''}{bad[0].case}" if bad else ""
        why = ": ".join([case, *bad[0].short[:1]]) if bad else ""
        where = next(iter(self.reports), "")
        options = [
            self._line(*parts, by_name=by_name)
            for parts in ((why, where), (why, ""), (case, ""), ("", where), ("", ""))
            for by_name in (True, False)
        ]
        return next((line for line in options if len(line) <= max(width, NARROWEST)), options[-1])

    def lines(self, width: int) -> Iterator[str]:
        """The table, why cases failed, what else should be known, the reports' paths, and last the verdict."""
        if self.cases:
            yield from console_table(self.cases, width)
            yield ""
        short = [f"{one.state}: {one.case}: {_few(one.short)}" for one in self.told if one.short]
        not_run = [f"not run: {text}" for text in self.not_run]
        for line in (*_some(short), *remarks(self.told), *_some(not_run)):
            # A per cent sign stays with its number.
            told = wrap(
                line.replace(" %", "\xa0%"),
                width,
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            yield from (part.replace("\xa0", " ") for part in told)
        yield from self.notes
        yield from self.reports
        yield from self.next_steps
        yield self.verdict(width)

    def _line(self, why: str, where: str, *, by_name: bool) -> str:
        warned = sum(len(one.warnings) for one in self.told)
        head = "flagperf: interrupted: " if self.interrupted else "flagperf: "
        parts = [head + self._counted(why, by_name=by_name), count(warned, "warning") if warned else "", where]
        return "; ".join(filter(None, parts))

    def _counted(self, why: str, *, by_name: bool) -> str:
        states = Counter(one.state for one in self.told)
        if not self.told:
            return "no case ran" + (f", {count(len(self.not_run), 'case')} asked for" if self.not_run else "")
        parts = [f"{states[PASSED]} of {count(len(self.told) + len(self.not_run), 'case')} passed"]
        parts += self._with_vendor_code(by_name=by_name)
        bad = ", ".join(f"{states[state]} {state}" for state in BAD if states[state])
        parts += [f"{bad} ({why})" if why else bad] if bad else []
        parts += [f"{states[state]} {state}" for state in (EXPECTED, UNFINISHED) if states[state]]
        parts += [f"{len(self.not_run)} not run"] if self.not_run else []
        return ", ".join(parts)

    def _with_vendor_code(self, *, by_name: bool) -> list[str]:
        """How many cases passed with vendor code; its names where they are alike and there is room."""
        found = [one.vendor_code for one in self.told if one.state == PASSED and one.vendor_code]
        if not found:
            return []
        return [f"{len(found)} with {found[0] if by_name and len(set(found)) == 1 else 'vendor code'}"]


def closing(run: Run, not_run: Sequence[str] = (), notes: Sequence[str] = (), reports: Sequence[str] = ()) -> Closing:
    """Of a run as it was stored."""
    interrupted = run.info is not None and run.info.exit_status == _INTERRUPTED
    told = tuple(tell(case, interrupted=interrupted) for case in run.cases)
    return Closing(run.cases, told, tuple(not_run), interrupted, tuple(notes), tuple(reports))


def all_lines(told: Sequence[Told]) -> Iterator[str]:
    """Everything that is to be said of the cases, each sentence whole."""
    yield from (f"failed: {one.case}: {text}" for one in told for text in one.failures)
    yield from remarks(told)


def remarks(told: Sequence[Told]) -> Iterator[str]:
    """Which failures were expected, and what else should be known: a line for each."""
    yield from _some(list(_vendor_code(told)))
    yield from _some([f"expected: {one.case}: {text}" for one in told for text in one.expected])
    yield from (f"warning: {one.case}: {text}" for one in told for text in one.warnings)


def _vendor_code(told: Sequence[Told]) -> Iterator[str]:
    """A line for each vendor code and the cases that ran with it."""
    cases: dict[str, list[str]] = {}
    for one in told:
        if one.vendor_code:
            cases.setdefault(one.vendor_code, []).append(f"{one.case} {one.state}")
    for code, each in cases.items():
        yield f"vendor code: {_few(each, _TOLD_AT_MOST, ', ')} with {code}"


def _in_short(one: Verdict) -> str:
    """What was got and wanted, where few words do; a round that broke off says itself why."""
    # What is judged in words, what it is judged of by its name: "baseline p_core".
    words, _, name = one.name.partition(" ")
    said = f"{words.replace('_', ' ')}{name and ' '}{name} {one.got}, wanted {one.wanted}"
    if one.kind not in (Kind.FINISHED, Kind.EXPECTED) and len(said) <= _SHORT:
        return said
    return shorten(one.sentence, 2 * _SHORT, placeholder=" ...")


def _warnings(case: CaseResult) -> Iterator[str]:
    for outcome in case.outcomes:
        yield from (f"round {outcome.round}: {warning.sentence}" for warning in outcome.validity_warnings)
        yield from (f"round {outcome.round}: {text}" for text in outcome.warnings)
    judged = [verdict for verdicts in case.verdicts.values() for verdict in verdicts]
    yield from (verdict.sentence for verdict in judged if verdict.ok and verdict.warning)


def _few(texts: Sequence[str], most: int = _SHORT_AT_MOST, between: str = "; ") -> str:
    more = len(texts) - most
    return between.join([*texts[:most], *([f"and {more} more"] if more > 0 else [])])


def _once(texts: Iterable[str]) -> tuple[str, ...]:
    """Several tests judge the same round. A line of its own in a text would read like one of ours."""
    return tuple(dict.fromkeys(text.replace("\n", " ") for text in texts))


def _some(texts: Sequence[str]) -> Iterator[str]:
    yield from texts[:_TOLD_AT_MOST]
    if len(texts) > _TOLD_AT_MOST:
        yield f"... and {len(texts) - _TOLD_AT_MOST} more like these"
