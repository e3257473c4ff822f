"""Whether many cards are faster than one, and by what was promised."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_flagperf.results import noise
from pytest_flagperf.results.outcome import Outcome
from pytest_flagperf.results.statistics import SURE, student_limit
from pytest_flagperf.results.units import compared, quantity
from pytest_flagperf.results.verdict import Verdict, finished

SCALINGS = ("weak", "strong")


@dataclass(frozen=True)
class OneCard:
    """What one card alone does, and where that figure is from: "this run", "a short round", ..."""

    p_core: float | None
    where_from: str
    unit: str = ""
    rounds: int = 1
    values: tuple[float, ...] = ()
    """Of its rounds, where they are known."""

    @classmethod
    def of(cls, values: Sequence[float], where_from: str, unit: str) -> OneCard:
        """The median of rounds."""
        return cls(statistics.median(values), where_from, unit, len(values), tuple(values))


def speedup(
    outcomes: Sequence[Outcome | None],
    one_card: OneCard | None,
    cards: int | None,
    min_efficiency: float | None,
    scaling: str,
) -> list[Verdict]:
    """The median p_core over the rounds against one card's: faster, and by what was promised."""
    if not outcomes:
        return [Verdict("finished", False, "no outcome", "finished", "no round was run: there is no speed-up")]
    found = [verdict for outcome in outcomes for verdict in finished(outcome)]
    if not all(verdict.ok for verdict in found):
        return found
    problem = _no_speedup(outcomes, one_card, cards, min_efficiency, scaling)
    if problem is not None:
        return [*found, problem]
    assert one_card is not None
    assert one_card.p_core is not None
    assert cards is not None
    assert min_efficiency is not None
    values = [_p_core(outcome) for outcome in outcomes]
    many = statistics.median(values)
    unit = one_card.unit or next(outcome.rate_unit for outcome in outcomes if outcome)
    factor = many / one_card.p_core
    what = (
        f"{scaling} scaling: {cards} cards do {quantity(many, unit)},"
        f" one card {quantity(one_card.p_core, unit)} ({one_card.where_from})"
    )
    alone = one_card.values or (one_card.p_core,)
    return [*found, _faster(factor, what), _efficient(factor, cards, min_efficiency, what, _sure(alone, values))]


def _no_speedup(
    outcomes: Sequence[Outcome | None],
    one_card: OneCard | None,
    cards: int | None,
    min_efficiency: float | None,
    scaling: str,
) -> Verdict | None:
    """Why no speed-up can be said."""
    bad = [outcome for outcome in outcomes if not _positive(_p_core(outcome))]
    if bad:
        got = quantity(_p_core(bad[0]))
        return _unsaid(f"round {bad[0].round if bad[0] else '?'}: p_core is {got}", got, "p_core above 0")
    if one_card is None or not _positive(one_card.p_core):
        got = quantity(one_card.p_core if one_card else None)
        where = f" ({one_card.where_from})" if one_card else ""
        return _unsaid(f"one card's p_core is {got}{where}", got, "one card's p_core above 0")
    if cards is None or cards < 2:
        return _unsaid(f"the case has {cards} card(s), two at least are needed", str(cards), "2 or more")
    if min_efficiency is None or not math.isfinite(min_efficiency) or min_efficiency < 0:
        got = quantity(min_efficiency)
        text = f"the least efficiency is {got}: set min_efficiency in vendor.toml or the case's config"
        return _unsaid(text, got, "a declared min_efficiency")
    if scaling not in SCALINGS:
        text = f"scaling is {scaling!r}, allowed are {' and '.join(SCALINGS)}"
        return _unsaid(text, repr(scaling), " or ".join(SCALINGS))
    if one_card.unit and any(outcome and outcome.rate_unit != one_card.unit for outcome in outcomes):
        return _unsaid(f"one card was measured in {one_card.unit}", one_card.unit, "the same unit")
    return None


def _unsaid(why: str, got: str, wanted: str) -> Verdict:
    return Verdict("speedup", False, got, wanted, f"no speed-up can be told: {why}")


def _faster(factor: float, what: str) -> Verdict:
    got = compared(factor, 1.0, "x")[0]
    ok = factor > 1
    sentence = f"{what}: speed-up {got}" + ("" if ok else ", wanted more than one card alone does")
    return Verdict("speedup", ok, got, "above 1x", sentence)


def _sure(alone: Sequence[float], many: Sequence[float]) -> float | None:
    """The factor within which the ratio of the two medians is known, up and down; None of one round each."""
    error = noise.of_rounds(alone, many)
    return None if error is None else math.exp(student_limit((1 - SURE) / 2, error.freedom) * error.share)


def _efficient(factor: float, cards: int, least: float, what: str, sure: float | None) -> Verdict:
    """The efficiency as measured decides; how sure it is, is said."""
    efficiency = factor / cards
    got, wanted = compared(efficiency, least, "share")
    ok = efficiency >= least
    said = _interval(efficiency, sure, least)
    sentence = f"{what}: speed-up {quantity(factor, 'x')}, efficiency {got} ({said}), wanted at least {wanted}"
    return Verdict("efficiency", ok, got, f"at least {wanted}", sentence)


def _interval(efficiency: float, sure: float | None, least: float) -> str:
    if sure is None:
        return "one round each: how sure that is, is not known"
    low, high = efficiency / sure, efficiency * sure
    said = f"{quantity(low, 'share')} to {quantity(high, 'share')}, {SURE * 100:g} % sure by the rounds' spread"
    return f"{said}: too near to tell" if low < least <= high else said


def _p_core(outcome: Outcome | None) -> float:
    value = outcome.value("p_core") if outcome else None
    return math.nan if value is None else value


def _positive(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0
