"""The summary of a run: the state of each case with the reasons, and the verdict of the run in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import shorten, wrap

from pytest_flagperf.report.terminal.table import console_table
from pytest_flagperf.results.figures.units import count
from pytest_flagperf.results.measured import marks
from pytest_flagperf.results.tables.store import CaseResult, StoredRun
from pytest_flagperf.results.verdicts import Verdict, VerdictKind, failed, is_regression

FAILED, REGRESSED, UNFINISHED, EXPECTED, PASSED = "failed", "regressed", "not finished", "failed as expected", "passed"
STATES = (FAILED, REGRESSED, UNFINISHED, EXPECTED, PASSED)
"""The states of a case, the worst first."""
BAD = (FAILED, REGRESSED)
UNLIMITED = 10_000
"""A width at which no line is shortened."""
KNOWN_PROBLEM = "known problem, stated by the vendor"
_FIGURES = {VerdictKind.SPEEDUP: "speed-up", VerdictKind.EFFICIENCY: "speed-up"}
_MIN_WIDTH = 80
_MAX_LINES = 10
_MAX_REASONS = 2
_MAX_REASON_LENGTH = 120


@dataclass(frozen=True)
class CaseSummary:
    """The state of a case, and its reasons as sentences without duplicates."""

    case: str
    state: str
    failures: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    """The failures in a few words each, for output that shows the sentences elsewhere."""
    expected: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    not_judged: tuple[str, ...] = ()
    """What passed because it could not be judged: "speed-up", "baseline"."""
    vendor_code: str = ""
    """The code and packages of the vendor beside its config, in a few words."""
    marks: Mapping[str, str] = field(default_factory=dict)
    """What a reader must know before the figures: short phrases, each with its sentence."""
    known_problems: tuple[str, ...] = ()
    """The problems that the vendor states of the case; they excuse nothing."""


def summarize_case(case: CaseResult, *, interrupted: bool = False) -> CaseSummary:
    """Return the summary of a case; a case that an interrupted run did not finish has not failed."""
    bad = failed([verdict for verdicts in case.verdicts.values() for verdict in verdicts])
    expected = [verdict for verdict in bad if verdict.expected_failure is not None]
    unexpected = [verdict for verdict in bad if verdict.expected_failure is None]
    broken = [failure.sentence for outcome in case.outcomes for failure in outcome.failures]
    reasons = {verdict.sentence: _in_short(verdict) for verdict in unexpected}
    reasons |= {text: text for text in broken if text not in {*reasons, *(verdict.sentence for verdict in expected)}}
    state = (
        REGRESSED
        if is_regression(unexpected) and not broken
        else FAILED
        if reasons
        else EXPECTED
        if expected
        else PASSED
    )
    if interrupted and not unexpected and (broken or not case.verdicts or len(case.outcomes) < case.repeat):
        state, reasons = UNFINISHED, {}
    elif not case.verdicts and not broken:
        state, reasons = FAILED, {"no verdicts": "no verdicts"}
    return CaseSummary(
        case.case,
        state,
        _unique(reasons),
        _unique(reasons.values()),
        _unique(f"{verdict.sentence} (expected failure: {verdict.expected_failure})" for verdict in expected),
        _unique(_warnings(case)),
        _unique(_not_judged(case)),
        case.vendor_code,
        marks.of_rounds(case.outcomes),
        _unique(case.known_problems),
    )


def state_with_code(summary: CaseSummary) -> str:
    """Return the state of a case and its vendor code, such as "passed with acme's own step backward"."""
    return f"{summary.state} with {summary.vendor_code}" if summary.vendor_code else summary.state


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
        """Yield the table, the reasons for failures, remarks, notes, the paths of the reports, and the verdict."""
        if self.cases:
            yield from console_table(self.cases, width)
            yield ""
        reasons = [f"{case.state}: {case.case}: {_joined(case.short)}" for case in self.summaries if case.short]
        not_run = [f"not run: {text}" for text in self.not_run]
        for line in (*_limited(reasons), *remarks(self.summaries), *_limited(not_run)):
            # No break between a number and its percent sign.
            wrapped = wrap(
                line.replace(" %", "\xa0%"),
                width,
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            yield from (part.replace("\xa0", " ") for part in wrapped)
        yield from self.notes
        yield from self.reports
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
        parts += not_judged(self.summaries)
        parts += counted_marks(self.summaries)
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
    interrupted = run.info is not None and run.info.is_interrupted
    summaries = tuple(summarize_case(case, interrupted=interrupted) for case in run.cases)
    return RunSummary(run.cases, summaries, tuple(not_run), interrupted, tuple(notes), tuple(reports))


def not_judged(summaries: Iterable[CaseSummary]) -> list[str]:
    """Return how many figures were not judged, such as "1 speed-up not judged"; one of each kind and case."""
    numbers = Counter(name for case in summaries for name in case.not_judged)
    return [f"{count(number, name)} not judged" for name, number in numbers.items()]


def all_lines(summaries: Sequence[CaseSummary]) -> Iterator[str]:
    """Yield every failure and remark of the cases in full."""
    yield from (f"failed: {case.case}: {text}" for case in summaries for text in case.failures)
    yield from remarks(summaries)


def counted_marks(summaries: Iterable[CaseSummary]) -> list[str]:
    """Return for each mark how many cases have it, such as "2 chip not verified"."""
    return [f"{number} {phrase}" for phrase, number in Counter(mark for one in summaries for mark in one.marks).items()]


def remarks(summaries: Sequence[CaseSummary]) -> Iterator[str]:
    """Yield a line for each mark, each vendor code, each known problem, each expected failure and each warning."""
    yield from _limited([f"{name}: {case.case}: {text}" for case in summaries for name, text in case.marks.items()])
    yield from _limited(list(_vendor_code(summaries)))
    yield from _limited([f"{KNOWN_PROBLEM}: {case.case}: {text}" for case in summaries for text in case.known_problems])
    yield from _limited([f"expected: {case.case}: {text}" for case in summaries for text in case.expected])
    yield from (f"warning: {case.case}: {text}" for case in summaries for text in case.warnings)


def _vendor_code(summaries: Sequence[CaseSummary]) -> Iterator[str]:
    """Yield a line for each vendor code with the cases that used it."""
    by_code: dict[str, list[str]] = {}
    for case in summaries:
        if case.vendor_code:
            by_code.setdefault(case.vendor_code, []).append(f"{case.case} {case.state}")
    for code, cases in by_code.items():
        yield f"vendor code: {_joined(cases, _MAX_LINES, ', ')} with {code}"


def _in_short(verdict: Verdict) -> str:
    """Return the got and expected value if they are short, else the shortened sentence."""
    # Underscores are kept in the name of a metric, such as "baseline p_core".
    words, _, metric = verdict.name.partition(" ")
    text = f"{words.replace('_', ' ')}{metric and ' '}{metric} {verdict.got}, expected {verdict.expected}"
    if verdict.kind not in (VerdictKind.FINISHED, VerdictKind.EXPECTED) and len(text) <= _MAX_REASON_LENGTH:
        return text
    return shorten(verdict.sentence, 2 * _MAX_REASON_LENGTH, placeholder=" ...")


def _warnings(case: CaseResult) -> Iterator[str]:
    for outcome in case.outcomes:
        yield from (f"round {outcome.round}: {warning.sentence}" for warning in outcome.validity_warnings)
        yield from (f"round {outcome.round}: {text}" for text in outcome.warnings)
    verdicts = [verdict for test in case.verdicts.values() for verdict in test]
    yield from (verdict.sentence for verdict in verdicts if verdict.ok and verdict.warning)


def _not_judged(case: CaseResult) -> Iterator[str]:
    verdicts = [verdict for test in case.verdicts.values() for verdict in test]
    yield from (_FIGURES.get(verdict.kind, verdict.kind.value) for verdict in verdicts if not verdict.judged)


def _joined(texts: Sequence[str], most: int = _MAX_REASONS, separator: str = "; ") -> str:
    more = len(texts) - most
    return separator.join([*texts[:most], *([f"and {more} more"] if more > 0 else [])])


def _unique(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the texts without duplicates, each on one line; several tests judge the same round."""
    return tuple(dict.fromkeys(text.replace("\n", " ") for text in texts))


def _limited(texts: Sequence[str]) -> Iterator[str]:
    yield from texts[:_MAX_LINES]
    if len(texts) > _MAX_LINES:
        yield f"... and {len(texts) - _MAX_LINES} more"
