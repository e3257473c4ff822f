"""Verdicts on measurements: the figures are complete, possible and repeatable; the chip reaches what is promised."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median, median_low

from flagperf_driver.node.logs.points import MeasuredPoint, Turn
from pytest_flagperf.kinds.measurement.uniform import BOUND, WAITS, Slow, slow_ranks
from pytest_flagperf.results.figures.statistics import finite
from pytest_flagperf.results.figures.units import compared, count, quantity
from pytest_flagperf.results.logs.points import point_of
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts.verdict import Verdict, finished, in_range
from pytest_flagperf.stored.plan import MOST_OF_PEAK, MeasuredFigure

_EVEN = f"no rank and no host {quantity(BOUND, 'share')} slower than the median of the others"


def measured(outcomes: Sequence[Outcome]) -> list[Verdict]:
    """Judge whether each round's figures are present, finite and possible, and whether the rounds repeat them."""
    verdicts = [verdict for outcome in outcomes for verdict in _of_round(outcome)]
    ended = [outcome for outcome in outcomes if outcome.ended_well]
    valid = [outcome for outcome in ended if outcome.valid]
    for figure in valid[0].figures if valid else ():
        verdicts += _repeatable(figure, valid)
    if ended and not valid:
        sentence = "whether the figures are repeatable is not judged: no valid round"
        verdicts.append(
            Verdict("repeatable", True, "not judged", "a valid round", sentence, warning=True, judged=False)
        )
    return verdicts


def reaches(outcomes: Sequence[Outcome]) -> Iterator[Verdict]:
    """Judge whether each round reaches the share of the declared peaks that the vendor promises."""
    for outcome in outcomes:
        yield from finished(outcome)
        if outcome.ended_well:
            yield from (_reached(outcome, figure) for figure in outcome.figures if figure.promised is not None)


def uniform(outcomes: Sequence[Outcome]) -> Iterator[Verdict]:
    """Judge whether a rank, or a host, is slower than its like; the verdict names it."""
    for outcome in outcomes:
        yield from finished(outcome)
        if not outcome.ended_well:
            continue
        points = {name: point for name in outcome.judged if (point := _point(outcome, name)) is not None}
        # Several figures may be of one point; a point that was not timed, such as a capacity, has no turns.
        timed = {point.name: name for name, point in reversed(points.items()) if point.turns or point.together}
        yield from (_even(outcome, name, points[name]) for name in points if name in timed.values())
        if not timed:
            yield _not_judged(outcome, "figures", "no point was measured in turns")


def _not_judged(outcome: Outcome, name: str, reason: str) -> Verdict:
    sentence = f"round {outcome.round}: whether ranks are equally fast is not judged: {reason}"
    return Verdict(f"uniform {name}", True, "not judged", _EVEN, sentence, warning=True, judged=False)


def _point(outcome: Outcome, name: str) -> MeasuredPoint | None:
    """Return the point of a figure of the round."""
    figure = next(figure for figure in outcome.figures if figure.name == name)
    return point_of(figure, outcome.points)


def _even(outcome: Outcome, figure: str, point: MeasuredPoint) -> Verdict:
    verdict = partial(Verdict, f"uniform {figure}")
    if point.together:  # nothing tells one rank from another
        return verdict(True, "not judged: all ranks work together in each iteration", _EVEN, judged=False)
    ranks = {f"rank {rank} on {_host(outcome, int(rank))}": turns for rank, turns in point.turns.items()}
    slow = slow_ranks(ranks)
    if slow is None:
        return _not_judged(outcome, figure, f"too few turns at {point.name}")
    hosts = _of_hosts(outcome, point) if outcome.nnodes > 1 else {}
    slow_hosts = {one.name: one for one in slow_ranks(hosts) or []}
    # The ranks of a slow host are named by their host.
    named = [*slow_hosts.values(), *(one for one in slow if one.name.partition(" on ")[2] not in slow_hosts)]
    if not named:
        return verdict(True, f"{count(len(ranks), 'rank')} within {quantity(BOUND, 'share')}", _EVEN)
    got = ", ".join(one.name for one in named)
    texts = "; ".join(_slower(one) for one in named)
    if outcome.busy:  # other processes took the cores: the ranks are named, and --strict fails the round
        return _not_judged(outcome, figure, f"at {point.name} {texts}, and other processes used the cores")
    return verdict(False, got, _EVEN, f"round {outcome.round}: at {point.name} {texts}; expected {_EVEN}")


def _slower(one: Slow) -> str:
    waits = one.reason == WAITS and one.waited is not None
    waited = f" in {quantity(one.waited, 'share')} of the time" if waits else ""
    return f"{one.name} is {quantity(one.share, 'share')} slower than the median of the others: it {one.reason}{waited}"


def _of_hosts(outcome: Outcome, point: MeasuredPoint) -> dict[str, list[Turn]]:
    """Return for each host the medians of its ranks in each turn; one slow rank of two does not make its host slow."""
    by_host: dict[str, list[Sequence[Turn]]] = {}
    for rank, turns in point.turns.items():
        by_host.setdefault(_host(outcome, int(rank)), []).append(turns)
    return {host: [_middle(turn) for turn in zip(*ranks, strict=False)] for host, ranks in by_host.items()}


def _middle(turns: Sequence[Turn]) -> Turn:
    own = [turn.own for turn in turns if turn.own is not None]
    waited = [turn.waited for turn in turns if turn.waited is not None]
    return Turn(
        median_low(turn.seconds for turn in turns),
        median_low(own) if own else None,
        median_low(waited) if waited else None,
    )


def _host(outcome: Outcome, rank: int) -> str:
    noderank = rank // max(outcome.nproc, 1)
    return outcome.hosts[noderank] if noderank < len(outcome.hosts) else f"host{noderank}"


def _of_round(outcome: Outcome) -> Iterator[Verdict]:
    yield from finished(outcome)
    if not outcome.ended_well:
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
    return Verdict("points", ok, got, expected, sentence)


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
    return Verdict(f"measured {figure.name}", ok, got, expected, sentence)


def _possible(outcome: Outcome, figure: MeasuredFigure, value: float) -> Iterator[Verdict]:
    """Judge a figure by the chip's declared peak, and by the suite's own bound."""
    name = f"possible {figure.name}"
    if figure.peak is not None:
        bound, share = figure.peak * MOST_OF_PEAK, quantity(MOST_OF_PEAK, "share")
        got, most = compared(value, bound, figure.unit)
        ok, expected = figure.is_possible(value), f"at most {most}, {share} of the declared peak"
        reason = "the clock, the counted work or the peak is wrong"
        sentence = "" if ok else f"round {outcome.round}: {figure.name} is {got}, expected {expected}: {reason}"
        yield Verdict(name, ok, got, expected, sentence)
    if figure.at_least is not None:
        got, least = compared(value, figure.at_least, figure.unit)
        ok, expected = value >= figure.at_least, f"at least {least}"
        sentence = "" if ok else f"round {outcome.round}: {figure.name} is {got}, expected {expected} ({figure.about})"
        yield Verdict(name, ok, got, expected, sentence)


def _repeatable(figure: MeasuredFigure, rounds: Sequence[Outcome]) -> Iterator[Verdict]:
    """Judge whether the valid rounds differ by no more than their noise."""
    name, bound = f"repeatable {figure.name}", quantity(figure.variation, "share")
    valid = [outcome for outcome in rounds if math.isfinite(outcome.value(figure.name) or math.nan)]
    expected = f"a variation of at most {bound}"
    if not valid:
        return
    if len(valid) == 1:
        yield from _known(figure, valid[0], name, expected)
        return
    values = finite(outcome.value(figure.name) for outcome in valid)
    middle = median(values)
    variation = (max(values) - min(values)) / middle if middle else math.inf
    ok, got = variation <= figure.variation, compared(variation, figure.variation, "share")[0]
    remarks = dict.fromkeys(
        f"{point.name} {remark}"
        for outcome in valid
        if (point := _point(outcome, figure.name)) is not None
        for remark in point.remarks
    )
    why = f"; {'; '.join(remarks)}" if remarks else ""
    spread = f"{quantity(min(values), figure.unit)} to {quantity(max(values), figure.unit)}"
    sentence = (
        f"{figure.name} varies by {got} in {count(len(values), 'round')} ({spread}), expected {expected}{why}:"
        " measure on an idle machine, or with more time for each point"
    )
    yield Verdict(name, ok, got, expected, "" if ok else sentence)


def _known(figure: MeasuredFigure, outcome: Outcome, name: str, expected: str) -> Iterator[Verdict]:
    """Judge the figure of a single round by the windows of its point; a noisy one needs further rounds to be judged."""
    point = _point(outcome, figure.name)
    # A capacity is not timed, and the windows of a share say nothing about it.
    if point is None or not point.windows or figure.unit == "share":
        return
    if point.interval is not None and point.interval <= figure.variation:
        yield Verdict(name, True, quantity(point.interval, "share"), expected)
        return
    noise = f"an interval of ± {quantity(point.interval, 'share')}" if point.interval is not None else "no interval"
    why = "; ".join([f"{count(point.windows, 'window')} of {point.name} have {noise}", *point.remarks])
    sentence = f"whether {figure.name} is repeatable is not judged by one round: {why}; --repeat=3 judges it"
    yield Verdict(name, True, "not judged", expected, sentence, warning=True, judged=False)


def _reached(outcome: Outcome, figure: MeasuredFigure) -> Verdict:
    value, share = outcome.value(figure.name), quantity(figure.promised, "share")
    peak = figure.peak
    if peak is None or figure.promised is None:
        raise ValueError(f"{figure.name} has no promise")
    got, least = compared(value, peak * figure.promised, figure.unit)
    ok = value is not None and value >= peak * figure.promised
    expected = f"at least {least}, {share} of the declared peak of {quantity(peak, figure.unit)}"
    sentence = "" if ok else f"round {outcome.round}: {figure.name} is {got}; the vendor promises {expected}"
    return Verdict(f"reaches {figure.name}", ok, got, expected, sentence)
