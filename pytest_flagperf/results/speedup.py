"""Whether many cards are faster than one, and by what was promised."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_flagperf.results.outcome import Outcome
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
    many = statistics.median(_p_core(outcome) for outcome in outcomes)
    unit = one_card.unit or next(outcome.rate_unit for outcome in outcomes if outcome)
    factor = many / one_card.p_core
    what = (
        f"{scaling} scaling: {cards} cards do {quantity(many, unit)},"
        f" one card {quantity(one_card.p_core, unit)} ({one_card.where_from})"
    )
    return [*found, _faster(factor, what), _efficient(factor / cards, factor, min_efficiency, what)]


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


def _efficient(efficiency: float, factor: float, least: float, what: str) -> Verdict:
    got, wanted = compared(efficiency, least, "share")
    ok = efficiency >= least
    sentence = f"{what}: speed-up {quantity(factor, 'x')}, efficiency {got}, wanted at least {wanted}"
    return Verdict("efficiency", ok, got, f"at least {wanted}", sentence)


def _p_core(outcome: Outcome | None) -> float:
    value = outcome.value("p_core") if outcome else None
    return math.nan if value is None else value


def _positive(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0
