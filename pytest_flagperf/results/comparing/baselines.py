"""Baselines: the accepted figures of a case, in one file for each case, and the verdicts against them.

``lower`` and ``upper`` are shares of the value as in ReFrame: -0.05 allows 5 % less, null allows any value. The
judge is ``noise.judge``, as for stored runs: a change counts if it is larger than its bound and than the noise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from pytest_flagperf.results.comparing.comparable import is_code, outcome_differences
from pytest_flagperf.results.comparing.comparison import THRESHOLD
from pytest_flagperf.results.figures import noise
from pytest_flagperf.results.figures.noise import Judgement, Level, Noise
from pytest_flagperf.results.figures.statistics import finite
from pytest_flagperf.results.figures.units import compared, count, quantity
from pytest_flagperf.results.measured import marks
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts import Verdict, VerdictKind, judged_figures
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf.stored import FormatError, files

SCHEMA = 1
PREFIX = "baseline"
BOUND = "its bound"
_DIGITS = 6


@dataclass(frozen=True)
class Figure:
    """One metric: the median of the accepted rounds, and the bounds below and above it."""

    value: float
    lower: float | None
    upper: float | None
    unit: str
    direction: str | None
    rounds: int
    noise: float | None = None
    """The standard deviation of one round as a share of the value, if known."""
    from_runs: Noise | None = None
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
    changed = [_field(text) for text in tested]
    return [_judged(name, figure, outcomes, baseline, label, changed) for name, figure in baseline.metrics.items()]


def unreadable(error: Exception) -> Verdict:
    """Return the failed verdict for a baseline that cannot be read."""
    sentence = f"the baseline cannot be read: {error}; fix the file, or remove it and accept a new baseline"
    return Verdict(PREFIX, False, "an unreadable file", "a valid baseline", sentence, kind=VerdictKind.INCOMPARABLE)


def _field(text: str) -> str:
    return text.partition(":")[0]


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
    measured = [metric for outcome in outcomes for metric in outcome.metrics]
    if not values:
        near = get_close_matches(name, {metric.name for metric in measured}, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return verdict(False, "missing", expected, f"{name} is missing, expected {expected} ({baseline.source}){hint}")
    units = {metric.unit for metric in measured if metric.name == name}
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
    judged = [*stored, *(verdict for verdict in judged_figures(case.outcomes) if verdict.name not in excused)]
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
    names = list(old.metrics) if old is not None else list(first.judged)
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
    lower, upper = (kept.lower, kept.upper) if kept is not None else (-THRESHOLD, THRESHOLD)
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
    problems = [f"{path}: {problem}" for problem in _problems(body)]
    if problems:
        raise FormatError("\n".join(problems))
    figures = {name: _read_figure(item) for name, item in body["metrics"].items()}
    rest = {name: body[name] for name in _KEYS if name in body}
    return Baseline(**{**rest, "metrics": figures, "accepted": Accepted(**body["accepted"]), "file": path})


def _read_figure(item: Mapping[str, Any]) -> Figure:
    from_runs = item.get("from_runs")
    return Figure(**{**item, "from_runs": None if from_runs is None else Noise(**from_runs)})


_KEYS = tuple(key.name for key in fields(Baseline) if key.name != "file")


def _problems(body: Mapping[str, Any]) -> Iterator[str]:
    yield from _keys("the file", body, ("schema", *_KEYS), ("case", "metrics", "accepted"))
    for name, kind, expected in (
        ("case", str, "a case"),
        ("metrics", dict, "an object with a figure for each metric"),
        ("accepted", dict, "an object"),
        ("throughput_only", bool, "true or false"),
        ("fingerprint", dict, "an object"),
        ("machine", dict, "an object"),
    ):
        if name in body and not isinstance(body[name], kind):
            yield f"{name} is {body[name]!r}, expected {expected}"
    accepted, metrics = body.get("accepted"), body.get("metrics")
    if isinstance(accepted, dict):
        yield from _keys("accepted", accepted, ("run", "when", "note"), ("run", "when"))
    if isinstance(metrics, dict):
        yield from () if metrics else ("metrics is empty: add a metric or remove the file",)
        for name, item in metrics.items():
            yield from _figure_problems(f"metrics.{name}", item)


def _figure_problems(where: str, item: object) -> Iterator[str]:
    if not isinstance(item, dict):
        yield f"{where} is {item!r}, expected an object with value, lower, upper, unit, direction, rounds"
        return
    names = tuple(key.name for key in fields(Figure))
    yield from _keys(where, item, names, names[:-2])
    for name, expected, is_valid in (
        ("value", "a number above 0", lambda value: _is_number(value) and value > 0),
        ("lower", "a share from -1 to 0 such as -0.05, or null", lambda value: _is_share(value, -1, 0)),
        ("upper", "a share of at least 0 such as 0.05, or null", lambda value: _is_share(value, 0, math.inf)),
        ("unit", "a string", lambda value: isinstance(value, str)),
        ("direction", '"higher", "lower" or null', lambda value: value in ("higher", "lower", None)),
        ("rounds", "a whole number of at least 1", lambda value: type(value) is int and value >= 1),
        ("noise", "a share of at least 0 such as 0.01, or null", lambda value: _is_share(value, 0, math.inf)),
    ):
        if name in item and not is_valid(item[name]):
            yield f"{where}.{name} is {files.to_json_types(item[name])!r}, expected {expected}"
    from_runs = item.get("from_runs")
    if from_runs is not None and not _is_noise(from_runs):
        expected = "an object with within and between (a share or null), runs and rounds (above 0), or null"
        yield f"{where}.from_runs is {files.to_json_types(from_runs)!r}, expected {expected}"


def _is_noise(item: object) -> bool:
    if not isinstance(item, dict) or item.keys() != {key.name for key in fields(Noise)}:
        return False
    shares = all(_is_share(item[name], 0, math.inf) for name in ("within", "between"))
    return shares and all(_is_number(item[name]) and item[name] > 0 for name in ("runs", "rounds"))


def _keys(where: str, item: Mapping[str, Any], known: Sequence[str], needed: Sequence[str]) -> Iterator[str]:
    for name in sorted(item.keys() - set(known)):
        near = get_close_matches(name, known, n=1)
        yield f"{where}: unknown key {name!r}" + (f"; did you mean {near[0]}?" if near else f" ({', '.join(known)})")
    yield from (f"{where}: {name} is missing" for name in needed if name not in item)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_share(value: object, low: float, high: float) -> bool:
    return value is None or (isinstance(value, (int, float)) and _is_number(value) and low <= value <= high)
