"""Baselines: the accepted figures of a case, in one file for each case, and the verdicts against them.

``lower`` and ``upper`` are shares of the value as in ReFrame: -0.05 allows 5 % less, null allows any value. The
judge is ``noise.judge``, as for stored runs: a change counts if it is larger than its bound and than the noise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pytest_flagperf.kind import kind_of
from pytest_flagperf.problems import near
from pytest_flagperf.results.comparing.comparable import is_code, outcome_differences
from pytest_flagperf.results.figures import noise
from pytest_flagperf.results.figures.noise import Judgement, Level, Noise
from pytest_flagperf.results.figures.statistics import finite
from pytest_flagperf.results.figures.units import compared, count, quantity
from pytest_flagperf.results.measured import marks
from pytest_flagperf.results.measured.outcome import Outcome, judged_at_points
from pytest_flagperf.results.verdicts import Verdict, VerdictKind
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf.stored import FormatError, files
from pytest_flagperf.typed import Check, Rule

SCHEMA = 1
PREFIX = "baseline"
_CHECK = Check(all_keys=True)
BOUND = "its bound"
_DIGITS = 6


def _is_share(value: float | None, low: float, high: float = math.inf) -> bool:
    return value is None or (low <= value <= high and math.isfinite(value))


def _is_noise(noise: Noise | None) -> bool:
    return noise is None or (
        all(_is_share(share, 0) for share in (noise.within, noise.between))
        and all(0 < number < math.inf for number in (noise.runs, noise.rounds))
    )


_Value = Annotated[float, Rule("a number above 0", lambda value: 0 < value < math.inf)]
_Lower = Annotated[
    float | None, Rule("a share from -1 to 0 such as -0.05, or null", lambda value: _is_share(value, -1, 0))
]
_Upper = Annotated[float | None, Rule("a share of at least 0 such as 0.05, or null", lambda value: _is_share(value, 0))]
_Direction = Annotated[str | None, Rule('"higher", "lower" or null', lambda value: value in ("higher", "lower", None))]
_Rounds = Annotated[int, Rule("a whole number of at least 1", lambda value: value >= 1)]
_OfRuns = Annotated[
    Noise | None,
    Rule("an object with within and between (a share or null), runs and rounds (above 0), or null", _is_noise),
]


@dataclass(frozen=True)
class Figure:
    """One metric: the median of the accepted rounds, and the bounds below and above it."""

    value: _Value
    lower: _Lower
    upper: _Upper
    unit: str
    direction: _Direction
    rounds: _Rounds
    noise: _Upper = None
    """The standard deviation of one round as a share of the value, if known."""
    from_runs: _OfRuns = None
    """The noise from run to run, if it was measured on enough stored runs."""

    @property
    def level(self) -> Level:
        return Level(self.value, self.rounds, self.noise, self.from_runs)

    def judge(self, values: Sequence[float]) -> Judgement:
        return noise.judge(self.level, values, direction=self.direction, lower=self.lower, upper=self.upper)

    @property
    def rule(self) -> str:
        """The smallest change that counts of another run with as many rounds and the same noise, as a sentence."""
        return self.judge(self.typical).rule(BOUND)

    @property
    def typical(self) -> list[float]:
        """Rounds of an unchanged run that vary like the accepted ones; their judgement has the limits of such a run."""
        reach = (self.noise or 0.0) * math.sqrt((self.rounds - 1) / 2) * self.value
        return [self.value - reach, *[self.value] * (self.rounds - 2), self.value + reach][-self.rounds :]


@dataclass(frozen=True)
class Accepted:
    """The accepted run, the time (UTC) and the note of who accepted it."""

    run: str
    when: str
    note: str = ""


@dataclass(frozen=True)
class Baseline:
    """The accepted figures of a case with any number of rounds; ``file`` is the file they were read from."""

    case: str
    metrics: Mapping[str, Figure]
    accepted: Accepted
    throughput_only: bool = False
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    file: Path | None = None

    def differences(self, outcome: Outcome) -> list[str]:
        """The fields in which a round differs from the accepted rounds."""
        case = {name: self.fingerprint[name] for name in _ABOUT if name in self.fingerprint}
        accepted = replace(
            outcome,
            fingerprint=self.fingerprint,
            machine=self.machine,
            throughput_only=self.throughput_only,
            **case,
        )
        return outcome_differences(accepted, outcome)

    @property
    def source(self) -> str:
        """The baseline's file and run, for messages."""
        below = self.file is not None and self.file.is_relative_to(Path.cwd())
        file = self.file.relative_to(Path.cwd()) if self.file is not None and below else self.file
        return f"{file or f'the baseline of {self.case}'}, accepted from {self.accepted.run}"


_ABOUT = ("vendor", "hardware", "scale", "synthetic")


# -- judging ---------------------------------------------------------------------------------------------------


def judge(outcomes: Sequence[Outcome], baseline: Baseline, *, ignore_differences: bool = False) -> list[Verdict]:
    """Return one verdict for each metric of the baseline; a single failed one if the rounds are not comparable."""
    texts = list(dict.fromkeys(text for outcome in outcomes for text in baseline.differences(outcome)))
    tested = [text for text in texts if is_code(text)]
    others = [text for text in texts if text not in tested]
    if others and not ignore_differences:
        return [_refused(others, baseline)]
    label = f"; compared although different: {', '.join(others)}" if others else ""
    changed = [text.partition(":")[0] for text in tested]
    return [_judged(name, figure, outcomes, baseline, label, changed) for name, figure in baseline.metrics.items()]


def unreadable(error: Exception) -> Verdict:
    """Return the failed verdict for a baseline that cannot be read."""
    sentence = f"the baseline cannot be read: {error}; fix the file, or remove it and accept a new baseline"
    return Verdict(PREFIX, False, "an unreadable file", "a valid baseline", sentence, kind=VerdictKind.INCOMPARABLE)


def _refused(texts: Sequence[str], baseline: Baseline) -> Verdict:
    got, expected = ", ".join(texts), "the accepted config and machine"
    sentence = (
        f"cannot be compared with the baseline ({baseline.source}): {got};"
        " accept a new baseline (flagperf accept), or compare anyway with --ignore-differences"
    )
    return Verdict(PREFIX, False, got, expected, sentence, kind=VerdictKind.INCOMPARABLE)


def _judged(
    name: str, figure: Figure, outcomes: Sequence[Outcome], baseline: Baseline, label: str, changed: Sequence[str]
) -> Verdict:
    verdict = partial(Verdict, f"{PREFIX} {name}", kind=VerdictKind.BASELINE)
    values = finite(outcome.value(name) for outcome in outcomes if outcome.valid)
    judgement = figure.judge(values)
    low, high = _limits(figure, judgement)
    expected = _expected(figure, low, high)
    if not any(outcome.valid for outcome in outcomes):
        return verdict(
            True, "not judged", expected, f"{name} is not judged: no valid round", warning=True, judged=False
        )
    if not values:
        hint = near(name, {metric.name for outcome in outcomes for metric in outcome.metrics})
        return verdict(False, "missing", expected, f"{name} is missing, expected {expected} ({baseline.source}){hint}")
    units = {metric.unit for outcome in outcomes if (metric := outcome.metric(name)) is not None}
    if figure.unit not in units:
        got = " and ".join(sorted(units))
        sentence = f"{name} is measured in {got!r}, but in {figure.unit!r} in the baseline ({baseline.source})"
        return verdict(False, got, figure.unit, f"{sentence}; fix the file, or accept a new baseline")
    verdict = partial(verdict, change=judgement.change)
    value = statistics.median(values)
    worse, better = judgement.word in (noise.WORSE, noise.CHANGED), judgement.word == noise.BETTER
    exceeded = (low if value < figure.value else high) if worse or better else None
    got = compared(value, figure.value if exceeded is None else exceeded, figure.unit)[0]
    rounds = "1 round" if len(values) == 1 else f"the median of {count(len(values), 'round')}"
    sentence = (
        f"{name} is {got} ({rounds}), {_deviation(value, figure)}; expected {expected} ({baseline.source}); "
        f"{judgement.rule(BOUND)}{label}"
    )
    if worse:
        sentence += f"; changed since then: {', '.join(changed)}" if changed else ""
        return verdict(False, got, expected, sentence)
    if better:
        first = f"{noise.IMPLAUSIBLE}: check the run before you " if judgement.is_implausible else ""
        sentence += f"; it is better by more than its bound: {first}accept a new baseline (flagperf accept)"
    return verdict(True, got, expected, sentence, warning=bool(better or label))


def _limits(figure: Figure, judgement: Judgement) -> tuple[float | None, float | None]:
    """Return the lowest and the highest allowed value."""
    low = None if judgement.down is None else figure.value - judgement.down * abs(figure.value)
    high = None if judgement.up is None else figure.value + judgement.up * abs(figure.value)
    return low, high


def _expected(figure: Figure, low: float | None, high: float | None) -> str:
    """The bound on the worse side, or both bounds if the metric has no direction."""
    bounds = []
    if low is not None and figure.direction != "lower":
        bounds.append(f"at least {compared(low, figure.value, figure.unit)[0]}")
    if high is not None and figure.direction != "higher":
        bounds.append(f"at most {compared(high, figure.value, figure.unit)[0]}")
    return " and ".join(bounds) or "any value"


def _deviation(value: float, figure: Figure) -> str:
    accepted = quantity(figure.value, figure.unit)
    if value == figure.value:
        return f"equal to the baseline's {accepted}"
    side = "above" if value > figure.value else "below"
    share = quantity(abs(value - figure.value) / abs(figure.value), "share") if figure.value else "all of it"
    return f"{share} {side} the baseline's {accepted}"


# -- accepting -------------------------------------------------------------------------------------------------


def refusal(case: CaseResult) -> str | None:
    """The reason why a case cannot be accepted: a round is missing, failed or has a validity warning; else None.

    Verdicts against the old baseline do not count: accepting is meant to replace it.
    """
    if len(case.outcomes) < case.repeat:
        return f"expected {case.repeat} rounds, got {len(case.outcomes)}"
    for outcome in case.outcomes:
        if not outcome.ok:
            failure = outcome.failures[0].sentence if outcome.failures else f"its state is {outcome.state!r}"
            return failure if failure.startswith("round") else f"round {outcome.round}: {failure}"
        if outcome.validity_warnings:
            return f"round {outcome.round}: {outcome.validity_warnings[0].sentence}"
    stored = [verdict for verdict in case.all_verdicts if not is_comparison(verdict)]
    if unverified := marks.unverified_chip(case.outcomes) or marks.unknown_factor(case.outcomes):
        return unverified
    excused = {verdict.name for verdict in stored if verdict.expected_failure}
    # A run of test_converges alone has measured the throughput too.
    figures = [criterion for criterion in kind_of(case).criteria if criterion.gate == "figures"]
    derived = [verdict for criterion in figures for verdict in criterion.verdicts_on(case.outcomes)]
    judged = [*stored, *(verdict for verdict in derived if verdict.name not in excused)]
    return next((verdict.sentence for verdict in judged if not verdict.ok and not verdict.expected_failure), None)


def useless_bound(baseline: Baseline) -> str | None:
    """The reason why no value could fail a bound of the baseline; None if every bound can fail."""
    for name, figure in baseline.metrics.items():
        low, _ = _limits(figure, figure.judge(figure.typical))
        if figure.direction != "lower" and low is not None and low <= 0:
            return (
                f"{name} varies so much that its lower bound would be -100 %, which no value can miss; measure again"
                " on an idle machine with more rounds"
            )
    return None


def is_comparison(verdict: Verdict) -> bool:
    """Return True if the verdict compares rounds with a baseline."""
    return verdict.kind in (VerdictKind.BASELINE, VerdictKind.INCOMPARABLE)


def accept(
    case: CaseResult,
    earlier: Sequence[Sequence[Outcome]],
    accepted: Accepted,
    old: Baseline | None = None,
    *,
    keep_bounds: bool = True,
) -> Baseline:
    """Make a baseline of a case, with the metrics of the old one, and its bounds if they are kept.

    ``earlier``: the rounds of comparable runs, from which the noise is measured together with the case's own.
    """
    first = case.outcomes[0]
    names = list(old.metrics) if old is not None else [*first.judged, *judged_at_points(first)]
    kept = old.metrics if old is not None and keep_bounds else {}
    figures = {name: _figure(name, case.outcomes, earlier, kept.get(name)) for name in names}
    return Baseline(
        case=case.without_repeat,
        metrics={name: figure for name, figure in figures.items() if figure is not None},
        accepted=accepted,
        throughput_only=first.throughput_only,
        fingerprint=first.fingerprint,
        machine=first.machine,
    )


def _figure(
    name: str, outcomes: Sequence[Outcome], earlier: Sequence[Sequence[Outcome]], kept: Figure | None
) -> Figure | None:
    records = [metric for outcome in outcomes if (metric := outcome.metric(name)) is not None]
    values = finite(outcome.value(name) for outcome in outcomes)
    runs = [finite(outcome.value(name) for outcome in rounds) for rounds in earlier]
    accepted = noise.level(values, [*runs, values])
    if accepted is None:
        return None
    lower, upper = (kept.lower, kept.upper) if kept is not None else (-noise.THRESHOLD, noise.THRESHOLD)
    value, record = float(f"{accepted.value:.{_DIGITS}g}"), records[0]
    deviation = None if accepted.deviation is None else round(accepted.deviation, _DIGITS)
    return Figure(value, lower, upper, record.unit, record.direction, accepted.rounds, deviation, accepted.from_runs)


# -- files -----------------------------------------------------------------------------------------------------


def write(path: Path, baseline: Baseline) -> None:
    body = {name: getattr(baseline, name) for name in _KEYS}
    files.write(path, {"schema": SCHEMA, **body})


def read(path: Path) -> Baseline:
    """Read a baseline; raise FormatError with all problems of the file."""
    body = files.read_printable(path, SCHEMA)
    del body["schema"]
    problems = [text for _, text in _CHECK.problems(body, Baseline)]
    if not problems and not body["metrics"]:
        problems = ["metrics is empty: add a metric or remove the file"]
    if problems:
        raise FormatError("\n".join(f"{path}: {problem}" for problem in problems))
    baseline: Baseline = _CHECK.made(body, Baseline)
    return replace(baseline, file=path)


_KEYS = tuple(key.name for key in fields(Baseline) if key.name != "file")
