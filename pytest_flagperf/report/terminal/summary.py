"""The summary at the end of a run: its table, the reasons for failures, and the verdict of the run in one line."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from textwrap import wrap

from pytest_flagperf.report.sweeps import sweeps, swept_case
from pytest_flagperf.report.terminal.table import console_table
from pytest_flagperf.results.figures.units import count, quantity
from pytest_flagperf.results.measured.limits import rates_of, work_of
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.results.verdicts.case_result import (
    BAD,
    EXPECTED,
    KNOWN_PROBLEM,
    PASSED,
    UNFINISHED,
    CaseResult,
    CaseSummary,
    counted_marks,
    counted_reasons,
    marked,
    not_judged,
    shortened,
    summarize_case,
)

UNLIMITED = 10_000
"""A width at which no line is shortened."""
_MIN_WIDTH = 80
_MAX_LINES = 10
_MAX_REASONS = 2


@dataclass(frozen=True)
class RunSummary:
    """The content of the summary at the end of a run; ``not_run``: a line for each case without a result."""

    cases: tuple[CaseResult, ...] = ()
    summaries: tuple[CaseSummary, ...] = ()
    not_run: tuple[str, ...] = ()
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()

    def verdict(self, width: int = UNLIMITED) -> str:
        """Return the verdict of the run in one line of at most ``width`` columns; less important parts are left out."""
        bad = [case for state in BAD for case in self.summaries if case.state == state]
        case = f"{'first ' if len(bad) > 1 else ''}{bad[0].case}" if bad else ""
        reason = ": ".join([case, *bad[0].short[:1]]) if bad else ""
        report = next(iter(self.reports), "")
        options = [
            self._line(*parts, by_name=by_name)
            for parts in ((reason, report), (reason, ""), (case, ""), ("", report), ("", ""))
            for by_name in (True, False)
        ]
        return next((line for line in options if len(line) <= max(width, _MIN_WIDTH)), options[-1])

    def lines(self, width: int) -> Iterator[str]:
        """Yield the table, the failures, remarks, notes, the paths of the reports, and the verdict."""
        if self.cases:
            yield from console_table(self.cases, width)
            yield ""
        results = zip(self.cases, self.summaries, strict=False)
        for sweep in sweeps(swept_case(case, summary) for case, summary in results):
            yield from _wrapped(f"{sweep.name}: {sweep.answer}", width)
        reasons = [f"{case.state}: {case.case}: {_joined(case.short)}" for case in self.summaries if case.short]
        not_run = [f"not run: {text}" for text in self.not_run]
        warnings = [line for case in self.summaries for line in _first_warning(case)]
        peaks = list(_peaks(self.cases))
        for line in (*_limited(reasons), *_limited(not_run), *_remarks(self.summaries), *peaks, *_limited(warnings)):
            yield from _wrapped(line, width)
        yield from self.notes
        for folder, paths in groupby(self.reports, os.path.dirname):
            first, *more = paths
            yield ", ".join([first, *(path[len(folder) + 1 :] for path in more)])
        yield from self.next_steps
        yield self.verdict(width)

    def _line(self, reason: str, report: str, *, by_name: bool) -> str:
        warnings = sum(len(case.warnings) for case in self.summaries)
        head = "flagperf: interrupted: " if self.interrupted else "flagperf: "
        parts = [head + self._counted(reason, by_name=by_name), count(warnings, "warning") if warnings else "", report]
        return "; ".join(filter(None, parts))

    def _counted(self, reason: str, *, by_name: bool) -> str:
        states = Counter(case.state for case in self.summaries)
        if not self.summaries:
            return "no case ran" + (f", {count(len(self.not_run), 'case')} requested" if self.not_run else "")
        parts = [f"{states[PASSED]} of {count(len(self.summaries) + len(self.not_run), 'case')} passed"]
        parts += self._with_vendor_code(by_name=by_name)
        parts += counted_marks(self.summaries)
        parts += not_judged(self.summaries)
        bad = ", ".join(f"{states[state]} {state}" for state in BAD if states[state])
        parts += [f"{bad} ({reason})" if reason else bad] if bad else []
        parts += [f"{states[state]} {state}" for state in (EXPECTED, UNFINISHED) if states[state]]
        parts += [f"{len(self.not_run)} not run"] if self.not_run else []
        return ", ".join(parts)

    def _with_vendor_code(self, *, by_name: bool) -> list[str]:
        """Return how many cases passed with vendor code; with ``by_name`` also which code, if it is the same."""
        codes = [case.vendor_code for case in self.summaries if case.state == PASSED and case.vendor_code]
        if not codes:
            return []
        return [f"{len(codes)} with {codes[0] if by_name and len(set(codes)) == 1 else 'vendor code'}"]


def summarize_run(
    run: StoredRun, not_run: Sequence[str] = (), notes: Sequence[str] = (), reports: Sequence[str] = ()
) -> RunSummary:
    """Return the summary of a stored run."""
    summaries = tuple(summarize_case(case, interrupted=run.is_interrupted) for case in run.cases)
    return RunSummary(run.cases, summaries, tuple(not_run), run.is_interrupted, tuple(notes), tuple(reports))


def _wrapped(line: str, width: int) -> Iterator[str]:
    """Yield the lines of a sentence, without a break between a number and its percent sign."""
    unbroken = line.replace(" %", "\xa0%")
    wrapped = wrap(unbroken, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    yield from (part.replace("\xa0", " ") for part in wrapped)


def all_lines(summaries: Sequence[CaseSummary]) -> Iterator[str]:
    """Yield every failure and remark of the cases in full."""
    yield from (f"failed: {case.case}: {text}" for case in summaries for text in case.failures)
    yield from _remarks(summaries)
    yield from (f"warning: {case.case}: {text}" for case in summaries for text in case.warnings)


def _first_warning(case: CaseSummary) -> Iterator[str]:
    """Yield the first warning that no mark of the case states, and how many more there are; the page has all."""
    warnings = [text for text in case.warnings if not any(sentence in text for sentence in case.marks.values())]
    if warnings:
        more = f" (and {count(len(warnings) - 1, 'more warning')})" if len(warnings) > 1 else ""
        yield f"warning: {case.case}: {shortened(warnings[0])}{more}"


def _remarks(summaries: Sequence[CaseSummary]) -> Iterator[str]:
    """Yield a line for each mark, each vendor code, each known problem and each expected failure."""
    for phrase, cases in marked(summaries).items():
        listed = _joined([one.case for one in cases], _MAX_LINES, ", ")
        yield f"{phrase}: {listed}: {_joined(counted_reasons(phrase, cases))}"
    yield from _limited(list(_vendor_code(summaries)))
    yield from _limited([f"{KNOWN_PROBLEM}: {case.case}: {text}" for case in summaries for text in case.known_problems])
    yield from _limited([f"expected: {case.case}: {text}" for case in summaries for text in case.expected])


def _peaks(cases: Sequence[CaseResult]) -> Iterator[str]:
    """Yield of which peaks the cases' MFU are: declared ones, which the run may have measured too."""
    measured = [outcome for case in cases for outcome in case.outcomes if outcome.points]
    by_peak: dict[str, list[str]] = {}
    for case in cases:
        if case.median("mfu") is not None and (work := work_of(case.outcomes)):
            rate = rates_of(work, measured).flops
            peak = f"and {quantity(rate, 'FLOP/s')} was measured" if rate else "which this run did not measure"
            by_peak.setdefault(peak, []).append(case.case)
    for peak, names in by_peak.items():
        yield f"MFU: of the declared peak, {peak}: {_joined(names, _MAX_LINES, ', ')}"


def _vendor_code(summaries: Sequence[CaseSummary]) -> Iterator[str]:
    """Yield a line for each vendor code with the cases that used it."""
    by_code: dict[str, list[str]] = {}
    for case in summaries:
        if case.vendor_code:
            by_code.setdefault(case.vendor_code, []).append(f"{case.case} {case.state}")
    for code, cases in by_code.items():
        yield f"vendor code: {_joined(cases, _MAX_LINES, ', ')} with {code}"


def _joined(texts: Sequence[str], most: int = _MAX_REASONS, separator: str = "; ") -> str:
    more = len(texts) - most
    return separator.join([*texts[:most], *([f"and {more} more"] if more > 0 else [])])


def _limited(texts: Sequence[str]) -> Iterator[str]:
    yield from texts[:_MAX_LINES]
    if len(texts) > _MAX_LINES:
        yield f"... and {len(texts) - _MAX_LINES} more"
