"""Accepted figures of a case, one file each that a review can read, and whether new rounds are as good.

``lower`` and ``upper`` are shares of the value, as ReFrame's: -0.05 allows 5 % less, null allows anything.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pytest_flagperf.case import folder as folder_of
from pytest_flagperf.case import without_repeat
from pytest_flagperf.results.comparing import noise
from pytest_flagperf.results.comparing.comparable import unlike
from pytest_flagperf.results.comparing.comparison import JUDGED, THRESHOLD
from pytest_flagperf.results.comparing.statistics import finite
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.store import CaseResult
from pytest_flagperf.results.units import compared, count, plain, quantity
from pytest_flagperf.results.verdicts import Kind, Verdict, throughput
from pytest_flagperf.stored import FormatError, files

SCHEMA = 1
LEAST = THRESHOLD
"""The narrowest bound that is made: a share of the value."""
ERRORS = 3.0
"""A bound that is made is so many standard errors of the difference of two runs, if that is more.

By Student's rule three rounds alone would ask for seven errors, and of slowdowns by 8 %, where a round varies by 2 %,
seven in ten would pass. With three and LEAST one in seven does; an honest run fails once in 300 there, and once in 20
where a round varies by 5 %.
"""
TESTED = ("suite_code", "vendor_code", "driver_code")
"""What a baseline is there to test: in these fields of the fingerprint rounds may be unlike it."""
PREFIX = "baseline"
_DIGITS = 6


@dataclass(frozen=True)
class Figure:
    """One metric: the median of the accepted rounds, and how far below and above it others may lie."""

    value: float
    lower: float | None
    upper: float | None
    unit: str
    direction: str | None
    rounds: int
    noise: float | None = None
    """The standard deviation of one round, as a share, as far as it was known."""

    def limits(self, rounds: int) -> tuple[float | None, float | None]:
        """The lowest and the highest value; of fewer rounds than were accepted never closer than noise goes."""
        error = (self.noise or 0.0) * math.sqrt(1 / rounds + 1 / self.rounds) if 0 < rounds < self.rounds else 0.0
        least = ERRORS * error
        low = None if self.lower is None else self.value + min(self.lower, -least) * abs(self.value)
        high = None if self.upper is None else self.value + max(self.upper, least) * abs(self.value)
        return low, high


@dataclass(frozen=True)
class Accepted:
    """The run whose figures they are, when somebody accepted them (UTC), and why."""

    run: str
    when: str
    note: str = ""


@dataclass(frozen=True)
class Baseline:
    """What was accepted of a case, whatever its number of rounds; ``file`` is where it was read."""

    case: str
    metrics: Mapping[str, Figure]
    accepted: Accepted
    throughput_only: bool = False
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    file: Path | None = None

    def differing(self, outcome: Outcome) -> list[str]:
        """In what a round is not like the accepted ones."""
        about = {name: self.fingerprint[name] for name in _ABOUT if name in self.fingerprint}
        then = replace(
            outcome,
            fingerprint=self.fingerprint,
            machine=self.machine,
            throughput_only=self.throughput_only,
            **about,
        )
        return unlike(then, outcome)

    @property
    def said(self) -> str:
        here = self.file is not None and self.file.is_relative_to(Path.cwd())
        file = self.file.relative_to(Path.cwd()) if self.file is not None and here else self.file
        return f"{file or f'the baseline of {self.case}'}, accepted from {self.accepted.run}"


_ABOUT = ("vendor", "hardware", "scale", "synthetic")


# -- judging ---------------------------------------------------------------------------------------------------


def judge(outcomes: Sequence[Outcome], baseline: Baseline, *, allow_unlike: bool = False) -> list[Verdict]:
    """One verdict per metric of the baseline, over the rounds that ended well; one for all if they are unlike it."""
    texts = list(dict.fromkeys(text for outcome in outcomes for text in baseline.differing(outcome)))
    tested = [text for text in texts if _field(text) in TESTED]
    others = [text for text in texts if text not in tested]
    if others and not allow_unlike:
        return [_refused(others, baseline)]
    label = f"; unlike it: {', '.join(others)}" if others else ""
    since = [_field(text) for text in tested]
    return [_judged(name, figure, outcomes, baseline, label, since) for name, figure in baseline.metrics.items()]


def unreadable(error: Exception) -> Verdict:
    """A gate that cannot be read is shut."""
    sentence = f"the baseline cannot be read: {error}; mend it, or remove it and accept a new one"
    return Verdict(PREFIX, False, "an unreadable file", "a baseline", sentence, kind=Kind.INCOMPARABLE)


def _field(text: str) -> str:
    return text.partition(":")[0]


def _refused(texts: Sequence[str], baseline: Baseline) -> Verdict:
    what = ", ".join(texts)
    sentence = (
        f"cannot be compared with the baseline ({baseline.said}): {what};"
        " accept a new baseline (--accept-baseline), or compare all the same with --unlike"
    )
    return Verdict(PREFIX, False, what, "rounds like the accepted ones", sentence, kind=Kind.INCOMPARABLE)


def _judged(
    name: str, figure: Figure, outcomes: Sequence[Outcome], baseline: Baseline, label: str, since: Sequence[str]
) -> Verdict:
    title = f"{PREFIX} {name}"
    values = finite(outcome.value(name) for outcome in outcomes if outcome.ok)
    low, high = figure.limits(len(values))
    wanted = _wanted(figure, low, high)
    if not values:
        near = get_close_matches(name, {metric.name for outcome in outcomes for metric in outcome.metrics}, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return Verdict(
            title,
            False,
            "missing",
            wanted,
            f"{name} is missing, wanted {wanted} ({baseline.said}){hint}",
            kind=Kind.BASELINE,
        )
    units = {metric.unit for outcome in outcomes for metric in outcome.metrics if metric.name == name}
    if figure.unit not in units:
        got = " and ".join(sorted(units))
        sentence = f"{name} is measured in {got!r}, its unit is {figure.unit!r} in the baseline ({baseline.said})"
        return Verdict(
            title, False, got, figure.unit, f"{sentence}; mend the file, or accept a new baseline", kind=Kind.BASELINE
        )
    value = statistics.median(values)
    below, above = low is not None and value < low, high is not None and value > high
    worse = (below and figure.direction != "lower") or (above and figure.direction != "higher")
    got = compared(value, low if below else high if above else figure.value, figure.unit)[0]
    rounds = "1 round" if len(values) == 1 else f"the median of {count(len(values), 'round')}"
    sentence = f"{name} is {got} ({rounds}), {_apart(value, figure)}; wanted {wanted} ({baseline.said}){label}"
    if worse and since:
        sentence += f"; since then changed: {', '.join(since)}"
    if (below or above) and not worse:
        sentence += "; it is better by more than its bound: accept a new baseline (--accept-baseline)"
    return Verdict(
        title, not worse, got, wanted, sentence, warning=not worse and bool(below or above or label), kind=Kind.BASELINE
    )


def _wanted(figure: Figure, low: float | None, high: float | None) -> str:
    """The bound whose other side is worse, or both where nobody said which way is."""
    said = []
    if low is not None and figure.direction != "lower":
        said.append(f"at least {compared(low, figure.value, figure.unit)[0]}")
    if high is not None and figure.direction != "higher":
        said.append(f"at most {compared(high, figure.value, figure.unit)[0]}")
    return " and ".join(said) or "any value"


def _apart(value: float, figure: Figure) -> str:
    usual = quantity(figure.value, figure.unit)
    if value == figure.value:
        return f"the baseline's own {usual}"
    way = "above" if value > figure.value else "below"
    share = quantity(abs(value - figure.value) / abs(figure.value), "share") if figure.value else "all of it"
    return f"{share} {way} the baseline's {usual}"


# -- accepting -------------------------------------------------------------------------------------------------


def why_not(case: CaseResult) -> str | None:
    """Why a case's rounds cannot be accepted; None where all are there and ended well, unbent, and they passed.

    What they were compared with does not count: an accepted change for the worse is what accepting is for.
    """
    there, wanted = len(case.outcomes), case.repeat
    if there < wanted:
        return f"{there} of its {wanted} rounds {'is' if there == 1 else 'are'} there"
    for outcome in case.outcomes:
        if not outcome.ok:
            failure = outcome.failures[0].sentence if outcome.failures else f"its state is {outcome.state!r}"
            return failure if failure.startswith("round") else f"round {outcome.round}: {failure}"
        if outcome.validity_warnings:
            return f"round {outcome.round}: {outcome.validity_warnings[0].sentence}"
    stored = [verdict for verdicts in case.verdicts.values() for verdict in verdicts if not is_comparison(verdict)]
    # A run of test_converges alone has measured the throughput, too.
    judged = [*stored, *throughput(case.outcomes)]
    return next((verdict.sentence for verdict in judged if not verdict.ok and not verdict.expected), None)


def no_gate(baseline: Baseline) -> str | None:
    """Why a baseline would let everything pass; None where each bound can be missed."""
    for name, figure in baseline.metrics.items():
        if figure.direction != "lower" and figure.lower is not None and figure.lower <= -1:
            return (
                f"{name} varies so much that its lower bound would be -100 %, which everything passes; measure again"
                " where nothing else runs, with more rounds"
            )
    return None


def is_comparison(verdict: Verdict) -> bool:
    """Whether the verdict compares rounds with a baseline."""
    return verdict.kind in (Kind.BASELINE, Kind.INCOMPARABLE)


def accept(
    case: CaseResult,
    earlier: Sequence[Sequence[Outcome]],
    accepted: Accepted,
    old: Baseline | None = None,
    *,
    keep_bounds: bool = True,
) -> Baseline:
    """What the rounds say, of the old baseline's metrics where there is one, and in its bounds if they are kept.

    ``earlier``: the rounds of like runs, from which, with these, it is known how much a figure varies by itself.
    """
    first = case.outcomes[0]
    names = list(old.metrics) if old is not None else list(JUDGED)
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
    if not values:
        return None
    runs = [finite(outcome.value(name) for outcome in rounds) for rounds in earlier]
    measured = noise.measure([*runs, values])
    made = width(measured, len(values))
    lower, upper = (kept.lower, kept.upper) if kept is not None else (max(-made, -1.0), made)
    value = float(f"{statistics.median(values):.{_DIGITS}g}")
    of_one = None if measured.within is None and measured.between is None else round(measured.of(1), 4)
    return Figure(value, lower, upper, records[0].unit, records[0].direction, len(values), of_one)


def width(measured: noise.Noise, rounds: int) -> float:
    """How wide a bound the noise asks for where another run has as many rounds, in whole thousandths."""
    return max(LEAST, math.ceil(ERRORS * math.sqrt(2) * measured.of(rounds) * 1000) / 1000)


# -- files -----------------------------------------------------------------------------------------------------


def path_of(folder: Path, case: str) -> Path:
    """Where the baseline of a case lies, whatever its number of rounds."""
    return folder / f"{folder_of(without_repeat(case))}.json"


def write(path: Path, baseline: Baseline) -> None:
    body = {name: getattr(baseline, name) for name in _KEYS}
    files.write(path, {"schema": SCHEMA, **body})


def read(path: Path) -> Baseline:
    """A FormatError says all that is wrong with the file."""
    body = files.read_printable(path, SCHEMA)
    problems = [f"{path}: {problem}" for problem in _problems(body)]
    if problems:
        raise FormatError("\n".join(problems))
    figures = {name: Figure(**item) for name, item in body["metrics"].items()}
    rest = {name: body[name] for name in _KEYS if name in body}
    return Baseline(**{**rest, "metrics": figures, "accepted": Accepted(**body["accepted"]), "file": path})


_KEYS = tuple(each.name for each in fields(Baseline) if each.name != "file")


def _problems(body: Mapping[str, Any]) -> Iterator[str]:
    yield from _keys("the file", body, ("schema", *_KEYS), ("case", "metrics", "accepted"))
    for name, kind, wanted in (
        ("case", str, "a case"),
        ("metrics", dict, "an object with a figure for each metric"),
        ("accepted", dict, "an object"),
        ("throughput_only", bool, "true or false"),
        ("fingerprint", dict, "an object"),
        ("machine", dict, "an object"),
    ):
        if name in body and not isinstance(body[name], kind):
            yield f"{name} is {body[name]!r}, wanted is {wanted}"
    accepted, metrics = body.get("accepted"), body.get("metrics")
    if isinstance(accepted, dict):
        yield from _keys("accepted", accepted, ("run", "when", "note"), ("run", "when"))
    if isinstance(metrics, dict):
        yield from () if metrics else ("metrics is empty: there would be nothing to judge; remove the file instead",)
        for name, item in metrics.items():
            yield from _figure_problems(f"metrics.{name}", item)


def _figure_problems(where: str, item: object) -> Iterator[str]:
    if not isinstance(item, dict):
        yield f"{where} is {item!r}, wanted is an object with value, lower, upper, unit, direction, rounds"
        return
    names = tuple(each.name for each in fields(Figure))
    yield from _keys(where, item, names, names[:-1])
    for name, wanted, fine in (
        ("value", "a number above 0", lambda value: _is_number(value) and value > 0),
        ("lower", "a share from -1 to 0, as -0.05, or null", lambda value: value is None or _within(value, -1, 0)),
        ("upper", "a share from 0 on, as 0.05, or null", lambda value: value is None or _within(value, 0, math.inf)),
        ("unit", "a string", lambda value: isinstance(value, str)),
        ("direction", '"higher", "lower" or null', lambda value: value in ("higher", "lower", None)),
        ("rounds", "a whole number from 1 on", lambda value: type(value) is int and value >= 1),
        ("noise", "a share from 0 on, as 0.01, or null", lambda value: value is None or _within(value, 0, math.inf)),
    ):
        if name in item and not fine(item[name]):
            yield f"{where}.{name} is {files.sayable(item[name])!r}, allowed is {wanted}"


def _keys(where: str, item: Mapping[str, Any], known: Sequence[str], needed: Sequence[str]) -> Iterator[str]:
    for name in sorted(item.keys() - set(known)):
        near = get_close_matches(name, known, n=1)
        yield f"{where}: no such key: {name!r}" + (f"; did you mean {near[0]}?" if near else f" ({', '.join(known)})")
    yield from (f"{where}: {name} is missing" for name in needed if name not in item)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _within(value: object, low: float, high: float) -> bool:
    return isinstance(value, (int, float)) and _is_number(value) and low <= value <= high


def bounds(figure: Figure) -> str:
    """``-5 % to +5 %``."""
    sides = [("-", figure.lower), ("+", figure.upper)]
    return " to ".join("any" if side is None else f"{sign}{plain(abs(side) * 100)} %" for sign, side in sides)
