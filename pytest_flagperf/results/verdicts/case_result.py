"""The result of a case: the rounds and verdicts, and the state that follows from them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import shorten

from pytest_flagperf import case as case_names
from pytest_flagperf.kind import kind_named
from pytest_flagperf.problems import some
from pytest_flagperf.results.figures import statistics
from pytest_flagperf.results.figures.units import count
from pytest_flagperf.results.measured import marks, vendor_code
from pytest_flagperf.results.measured.outcome import UNREADABLE, Outcome, counted
from pytest_flagperf.results.verdicts import OneCard, Verdict, VerdictKind, failed, has_converged, is_regression
from pytest_flagperf.results.verdicts.speedup import format_speedup, p_cores
from pytest_flagperf.stored.plan import TRAINING

FAILED, REGRESSED, UNFINISHED, EXPECTED, PASSED = "failed", "regressed", "not finished", "failed as expected", "passed"
STATES = (FAILED, REGRESSED, UNFINISHED, EXPECTED, PASSED)
"""The states of a case, the worst first."""
BAD = (FAILED, REGRESSED)
KNOWN_PROBLEM = "known problem, stated by the vendor"
_MAX_REASON_LENGTH = 120


@dataclass(frozen=True)
class CaseResult:
    """The rounds of a case in order, and its verdicts by test."""

    case: str
    outcomes: tuple[Outcome, ...] = ()
    verdicts: Mapping[str, tuple[Verdict, ...]] = field(default_factory=dict)
    one_card: OneCard | None = None

    @property
    def first(self) -> Outcome:
        return self.outcomes[0]

    @property
    def kind(self) -> str:
        """The kind of its suite, by the rounds whose record can be read."""
        return next((outcome.kind for outcome in self.outcomes if outcome.state != UNREADABLE), TRAINING)

    @property
    def finished(self) -> list[Outcome]:
        """The rounds that ended well."""
        return [outcome for outcome in self.outcomes if outcome.ok]

    @property
    def counted(self) -> list[Outcome]:
        """The rounds whose figures count."""
        return counted(self.outcomes)

    @property
    def without_repeat(self) -> str:
        """The name of the case without the number of rounds."""
        return case_names.without_repeat(self.case)

    @property
    def repeat(self) -> int:
        """The number of rounds by the case's name."""
        case = case_names.case_of(self.case)
        return case.repeat if case else 1

    @property
    def speedup(self) -> float | None:
        """The median p_core of the counted rounds over one card's; None if one of them is missing."""
        if self.one_card is None:
            return None
        values = p_cores(self.outcomes, self.one_card)
        many, one = statistics.summarize(values).median, statistics.finite([self.one_card.p_core])
        return many / one[0] if many is not None and one and one[0] > 0 else None

    @property
    def speedup_text(self) -> str:
        """The formatted speed-up; empty if it is unknown."""
        return "" if self.speedup is None else format_speedup(self.speedup, self.first.cards)

    @property
    def all_verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts of all tests."""
        return tuple(verdict for verdicts in self.verdicts.values() for verdict in verdicts)

    @property
    def ok(self) -> bool:
        """Whether there are verdicts, all of them passed or are expected failures, and every round was judged."""
        judged = self.all_verdicts
        # A round that did not end well fails a verdict, unless its test was interrupted.
        unfinished = [outcome for outcome in self.outcomes if not outcome.ok]
        explained = any(not verdict.ok for verdict in judged) and not any(
            one.state == "interrupted" for one in unfinished
        )
        return (
            bool(judged)
            and (explained or not unfinished)
            and all(verdict.ok or verdict.expected_failure for verdict in judged)
        )

    @property
    def converged(self) -> int | None:
        """The number of rounds that converged; None if no round was meant to."""
        return sum(map(has_converged, self.outcomes)) if self.meant else None

    @property
    def vendor_code(self) -> str:
        """The vendor code beside the config in a few words, or an empty text."""
        listed = dict.fromkeys(name for outcome in self.outcomes for name in outcome.vendor_code)
        return vendor_code.phrase(self.first.vendor, listed, self.median("vendor_factor")) if listed else ""

    @property
    def known_problems(self) -> tuple[str, ...]:
        """The problems that the vendor states of the case; they excuse nothing."""
        stated = (vendor_code.known_problems(outcome.fingerprint) for outcome in self.outcomes)
        return tuple(dict.fromkeys(text for texts in stated for text in texts))

    @property
    def meant(self) -> int:
        """The number of rounds that were meant to reach the target."""
        return sum(outcome.meant_to_converge for outcome in self.outcomes)

    @property
    def quality(self) -> float | None:
        """The median of the last evaluations, over the successful rounds that were meant to converge."""
        return last_quality(self.outcomes)

    def median(self, name: str) -> float | None:
        """The median of a metric over the counted rounds."""
        return statistics.summarize(outcome.value(name) for outcome in self.counted).median


def last_quality(outcomes: Iterable[Outcome], further: str | None = None) -> float | None:
    """Return the median of the last evaluations, over the successful rounds that were meant to converge.

    The metric is the suite's, or the ``further`` metric of this name.
    """
    judged = [one.quality for one in outcomes if one.ok and one.meant_to_converge]
    values = (one.last if further is None else one.also[further].last for one in judged)
    return statistics.summarize(values).median


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
    bad = failed(case.all_verdicts)
    expected = [verdict for verdict in bad if verdict.expected_failure is not None]
    unexpected = [verdict for verdict in bad if verdict.expected_failure is None]
    broken = [failure.sentence for outcome in case.outcomes for failure in outcome.failures]
    reasons = {verdict.sentence: _in_short(verdict) for verdict in unexpected}
    reasons |= {text: text for text in broken if text not in {*reasons, *(verdict.sentence for verdict in expected)}}
    if interrupted and not unexpected and (broken or not case.verdicts or len(case.outcomes) < case.repeat):
        state, reasons = UNFINISHED, {}
    elif not case.verdicts and not broken:
        state, reasons = FAILED, {"no verdicts": "no verdicts"}
    elif is_regression(unexpected) and not broken:
        state = REGRESSED
    else:
        state = FAILED if reasons else EXPECTED if expected else PASSED
    return CaseSummary(
        case.case,
        state,
        _unique(reasons),
        _unique(reasons.values()),
        _unique(f"{verdict.sentence} (expected failure: {verdict.expected_failure})" for verdict in expected),
        _unique(_warnings(case)),
        _unique(_subject(case, one) for one in case.all_verdicts if not one.judged),
        case.vendor_code,
        marks.of_rounds(case.outcomes),
        _unique(case.known_problems),
    )


def shortened(sentence: str) -> str:
    """Return a sentence in at most 120 characters, for output that shows all of it elsewhere."""
    return shorten(sentence, _MAX_REASON_LENGTH, placeholder=" ...")


def not_judged(summaries: Iterable[CaseSummary]) -> list[str]:
    """Return how many figures were not judged, such as "1 speed-up not judged"; one of each kind and case."""
    numbers = Counter(name for case in summaries for name in case.not_judged)
    return [f"{count(number, name)} not judged" for name, number in numbers.items()]


def counted_marks(summaries: Iterable[CaseSummary]) -> list[str]:
    """Return for each mark how many cases have it, such as "chip not verified in 2 cases"."""
    return [f"{phrase} in {count(len(cases), 'case')}" for phrase, cases in marked(summaries).items()]


def counted_reasons(phrase: str, cases: Sequence[CaseSummary]) -> list[str]:
    """Return the short reasons of a mark, each with the number of cases for which only the numbers in it differ."""
    similar: dict[str, list[str]] = {}
    for case in cases:
        similar.setdefault(re.sub(r"[\d.,]+", "", case.marks[phrase]), []).append(shortened(case.marks[phrase]))
    return [texts[0] + (f" ({count(len(texts), 'case')})" if cases[1:] else "") for texts in similar.values()]


def marked(summaries: Iterable[CaseSummary]) -> dict[str, list[CaseSummary]]:
    """Return for each mark the cases that have it."""
    groups: dict[str, list[CaseSummary]] = {}
    for one in summaries:
        for phrase in one.marks:
            groups.setdefault(phrase, []).append(one)
    return groups


def _subject(case: CaseResult, verdict: Verdict) -> str:
    criterion = kind_named(case.kind).criterion_of(verdict.name)
    return criterion.subject if criterion and criterion.subject else verdict.kind


def _in_short(verdict: Verdict) -> str:
    """Return the got and expected value if they are short, else the shortened sentence."""
    # Underscores are kept in the name of a metric, such as "baseline p_core".
    words, _, metric = verdict.name.partition(" ")
    text = f"{words.replace('_', ' ')}{metric and ' '}{metric} {verdict.got}, expected {verdict.expected}"
    if verdict.kind not in (VerdictKind.FINISHED, VerdictKind.EXPECTED) and len(text) <= _MAX_REASON_LENGTH:
        return text
    return shorten(verdict.sentence, 2 * _MAX_REASON_LENGTH, placeholder=" ...")


def _warnings(case: CaseResult) -> Iterator[str]:
    """Yield the warnings of the rounds, one kind of a host once, and those of the verdicts."""
    groups: dict[object, dict[int, list[str]]] = {}
    for outcome in case.outcomes:
        similar = [((one.kind, one.sentence.partition(": ")[0]), one.sentence) for one in outcome.validity_warnings]
        for group, text in (*similar, *((text, text) for text in outcome.warnings)):
            groups.setdefault(group, {}).setdefault(outcome.round, []).append(text)
    for rounds in groups.values():
        first, *others = rounds
        further = f" (similar in {some(list(map(str, others)))})" if others else ""
        yield from (f"round {first}{further}: {text}" for text in rounds[first])
    yield from (verdict.sentence for verdict in case.all_verdicts if verdict.ok and verdict.warning)


def _unique(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the texts without duplicates, each on one line; several tests judge the same round."""
    return tuple(dict.fromkeys(text.replace("\n", " ") for text in texts))
