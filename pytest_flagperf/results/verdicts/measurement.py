"""Verdicts on measurements: the figures are complete, possible and repeatable; the chip reaches what is promised."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from pytest_flagperf.results.figures.statistics import finite
from pytest_flagperf.results.figures.units import compared, count, quantity
from pytest_flagperf.results.logs.points import point_of
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts.verdict import Verdict, VerdictKind, finished, in_range
from pytest_flagperf.stored.plan import MeasuredFigure

MOST_OF_PEAK = 1.05
"""The largest share of a declared peak: peaks are of a nominal clock."""
_KIND = VerdictKind.MEASURED


def measured(outcomes: Sequence[Outcome | None]) -> list[Verdict]:
    """Judge whether each round's figures are present, finite and possible, and whether the rounds repeat them."""
    if not outcomes:
        sentence = "no figure: no round ran"
        return [Verdict("finished", False, "no outcome", "finished", sentence, kind=VerdictKind.FINISHED)]
    verdicts = [verdict for outcome in outcomes for verdict in _of_round(outcome)]
    ended = [outcome for outcome in outcomes if outcome is not None and outcome.ended_well]
    for figure in ended[0].figures if ended else ():
        verdicts += _repeatable(figure, ended)
    return verdicts


def reaches(outcomes: Sequence[Outcome | None]) -> list[Verdict]:
    """Judge whether each round reaches the share of the declared peaks that the vendor promises."""
    verdicts = []
    for outcome in outcomes:
        verdicts += finished(outcome)
        if outcome is not None and outcome.ended_well:
            verdicts += [_reached(outcome, figure) for figure in outcome.figures if figure.promised is not None]
    return verdicts


def _of_round(outcome: Outcome | None) -> Iterator[Verdict]:
    yield from finished(outcome)
    if outcome is None or not outcome.ended_well:
        return
    yield in_range(outcome)
    yield _points(outcome)
    for figure in outcome.figures:
        value = outcome.value(figure.name)
        if value is not None or figure.is_required:
            yield _present(outcome, figure, value)
        if value is not None and math.isfinite(value):
            yield from _possible(outcome, figure, value)


def _points(outcome: Outcome) -> Verdict:
    """Judge whether the round has points, and whether all of their records are valid."""
    got, expected = count(len(outcome.points), "point"), "at least 1 point, and valid records of points"
    ok = bool(outcome.points) and not outcome.bad_points
    if outcome.bad_points:
        got = f"{count(outcome.bad_points, 'invalid record')} of points"
    sentence = "" if ok else f"round {outcome.round}: {got}; expected {expected}"
    return Verdict("points", ok, got, expected, sentence, kind=_KIND)


def _present(outcome: Outcome, figure: MeasuredFigure, value: float | None) -> Verdict:
    ok = value is not None and math.isfinite(value) and value > 0
    got, expected = quantity(value, figure.unit), "a finite number above 0"
    sentence = "" if ok else f"round {outcome.round}: {figure.name} is {got}, expected {expected}"
    if value is None and outcome.left_out:
        first = outcome.left_out[0]
        sentence += (
            f"; {count(len(outcome.left_out), 'point')} left out, the first is {first.name}, which would take"
            f" {quantity(first.expected_s, 's')} for an iteration"
        )
    return Verdict(f"measured {figure.name}", ok, got, expected, sentence, kind=_KIND)


def _possible(outcome: Outcome, figure: MeasuredFigure, value: float) -> Iterator[Verdict]:
    """Judge a figure by the chip's declared peak, and by the suite's own bound."""
    name = f"possible {figure.name}"
    if figure.peak is not None:
        bound, share = figure.peak * MOST_OF_PEAK, quantity(MOST_OF_PEAK, "share")
        got, most = compared(value, bound, figure.unit)
        ok, expected = value <= bound, f"at most {most}, {share} of the declared peak"
        reason = "the clock, the counted work or the peak is wrong"
        sentence = "" if ok else f"round {outcome.round}: {figure.name} is {got}, expected {expected}: {reason}"
        yield Verdict(name, ok, got, expected, sentence, kind=_KIND)
    if figure.at_least is not None:
        got, least = compared(value, figure.at_least, figure.unit)
        ok, expected = value >= figure.at_least, f"at least {least}"
        sentence = "" if ok else f"round {outcome.round}: {figure.name} is {got}, expected {expected} ({figure.about})"
        yield Verdict(name, ok, got, expected, sentence, kind=_KIND)


def _repeatable(figure: MeasuredFigure, outcomes: Sequence[Outcome]) -> Iterator[Verdict]:
    """Judge whether the valid rounds differ by no more than their noise; of one round, how much its windows vary."""
    name, bound = f"repeatable {figure.name}", quantity(figure.variation, "share")
    having = [outcome for outcome in outcomes if math.isfinite(outcome.value(figure.name) or math.nan)]
    valid = [outcome for outcome in having if outcome.valid]
    expected = f"a variation of at most {bound}"
    if not having:
        return
    if not valid:
        sentence = f"whether {figure.name} is repeatable is not judged: no valid round"
        yield Verdict(name, True, "not judged", expected, sentence, warning=True, kind=_KIND, judged=False)
        return
    values = finite(outcome.value(figure.name) for outcome in valid)
    middle = median(values)
    if len(values) > 1:
        variation, where = (max(values) - min(values)) / middle if middle else math.inf, count(len(values), "round")
    else:
        point = point_of(figure, valid[0].points)
        variation, where = (point.interval if point and point.interval is not None else 0.0), "the windows of 1 round"
    ok, got = variation <= figure.variation, compared(variation, figure.variation, "share")[0]
    remarks = dict.fromkeys(
        f"{point.name} {remark}"
        for outcome in valid
        if (point := point_of(figure, outcome.points)) is not None
        for remark in point.remarks
    )
    why = f"; {'; '.join(remarks)}" if remarks else ""
    spread = f"{quantity(min(values), figure.unit)} to {quantity(max(values), figure.unit)}"
    sentence = (
        f"{figure.name} varies by {got} in {where} ({spread}), expected {expected}{why}: measure on an idle machine,"
        " or with more time for each point"
    )
    yield Verdict(name, ok, got, expected, "" if ok else sentence, kind=_KIND)


def _reached(outcome: Outcome, figure: MeasuredFigure) -> Verdict:
    value, share = outcome.value(figure.name), quantity(figure.promised, "share")
    peak = figure.peak
    if peak is None or figure.promised is None:
        raise ValueError(f"{figure.name} has no promise")
    got, least = compared(value, peak * figure.promised, figure.unit)
    ok = value is not None and value >= peak * figure.promised
    expected = f"at least {least}, {share} of the declared peak of {quantity(peak, figure.unit)}"
    sentence = "" if ok else f"round {outcome.round}: {figure.name} is {got}; the vendor promises {expected}"
    return Verdict(f"reaches {figure.name}", ok, got, expected, sentence, kind=VerdictKind.REACHES)
