"""Whether many cards are faster than one, and by what was promised."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_flagperf.results.comparing import noise
from pytest_flagperf.results.comparing.statistics import SURE, finite, student_limit
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.units import compared, quantity
from pytest_flagperf.results.verdicts.verdict import Kind, Verdict, finished

SCALINGS = ("weak", "strong")
SPEEDUP, EFFICIENCY = "speedup", "efficiency"


@dataclass(frozen=True)
class OneCard:
    """What one card alone does, and where that figure is from: "this run", "a short round", ..."""

    p_core: float | None
    where_from: str
    unit: str = ""
    rounds: int = 1
    values: tuple[float, ...] = ()
    """Of its rounds, where they are known."""
    many: tuple[float, ...] = ()
    """What all cards did in short rounds that took turns with those of one card; the speed-up is of these too."""
    busy: str = ""
    """What other work the machine had in all of its rounds."""

    @classmethod
    def of(cls, values: Sequence[float], where_from: str, unit: str, busy: str = "") -> OneCard:
        """The median of rounds."""
        return cls(statistics.median(values), where_from, unit, len(values), tuple(values), busy=busy)

    def with_turn(self, alone: float, many: float) -> OneCard:
        """The same with what a short round of one card and one of all cards showed."""
        known = self.values or ((self.p_core,) if self.p_core is not None else ())
        where = self.where_from if self.many else f"{self.where_from}, measured again"
        return replace(OneCard.of([*known, alone], where, self.unit, self.busy), many=(*self.many, many))


def quiet(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The rounds that had their hosts to themselves; all of them where none had."""
    outcomes = list(outcomes)
    return [outcome for outcome in outcomes if not outcome.busy] or outcomes


def p_cores(outcomes: Iterable[Outcome], one_card: OneCard) -> list[float]:
    """What all cards did: of quiet rounds and of short ones, and of busy rounds only where there is nothing else."""
    rounds = quiet(outcomes)
    if one_card.many and rounds and rounds[0].busy:
        return list(one_card.many)
    return [*finite(outcome.value("p_core") for outcome in rounds), *one_card.many]


def in_words(factor: float, cards: int) -> str:
    """A speed-up for people: no cards are faster than all of them together, so what is above that is noise."""
    return quantity(factor, "x") + (f" (above {cards} cards: noise)" if factor > cards else "")


def speedup(
    outcomes: Sequence[Outcome | None],
    one_card: OneCard | None,
    cards: int | None,
    min_efficiency: float | None,
    scaling: str,
    *,
    strict: bool = False,
) -> list[Verdict]:
    """The median p_core over the rounds against one card's: faster, and by what was promised.

    A speed-up that was missed while other work had the cores is a warning, under ``strict`` a failure.
    """
    if not outcomes:
        return [
            Verdict(
                "finished",
                False,
                "no outcome",
                "finished",
                "no round was run: there is no speed-up",
                kind=Kind.FINISHED,
            )
        ]
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
    counted = quiet(outcome for outcome in outcomes if outcome is not None)
    values = p_cores(counted, one_card)
    many = statistics.median(values)
    unit = one_card.unit or counted[0].rate_unit
    factor = many / one_card.p_core
    what = (
        f"{scaling} scaling: {cards} cards do {quantity(many, unit)},"
        f" one card {quantity(one_card.p_core, unit)} ({one_card.where_from})"
    )
    alone = one_card.values or (one_card.p_core,)
    judged = [_faster(factor, cards, what), _efficient(factor, cards, min_efficiency, what, _sure(alone, values))]
    busy = "" if one_card.many else "; ".join(dict.fromkeys(outcome.busy for outcome in counted))
    return [*found, *(_as_busy(verdict, busy, one_card.busy, strict=strict) for verdict in judged)]


def _as_busy(verdict: Verdict, many: str, alone: str, *, strict: bool) -> Verdict:
    """Other work on the machine slows many cards down, which fails nothing; one card that it slowed flatters them."""
    if not verdict.ok and many and not strict:
        sentence = f"not judged, for the machine was busy: {verdict.sentence}; {many}"
        return replace(verdict, ok=True, warning=True, got=f"{verdict.got} (busy: not judged)", sentence=sentence)
    if not verdict.ok and many:
        return replace(verdict, sentence=f"{verdict.sentence}; the machine was busy: {many}")
    if verdict.ok and alone:
        sentence = f"{verdict.sentence}; the one card was slowed down, so the true value may be lower: {alone}"
        return replace(verdict, warning=True, sentence=sentence)
    return verdict


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
    return Verdict(SPEEDUP, False, got, wanted, f"no speed-up can be told: {why}", kind=Kind.SPEEDUP)


def _faster(factor: float, cards: int, what: str) -> Verdict:
    got = in_words(factor, cards) if factor > cards else compared(factor, 1.0, "x")[0]
    ok = factor > 1
    sentence = f"{what}: speed-up {got}" + ("" if ok else ", wanted more than one card alone does")
    return Verdict(SPEEDUP, ok, got, "above 1x", sentence, warning=factor > cards, kind=Kind.SPEEDUP)


def _sure(alone: Sequence[float], many: Sequence[float]) -> float | None:
    """The factor within which the ratio of the two medians is known, up and down; None of one round each."""
    error = noise.of_rounds(alone, many)
    return None if error is None else math.exp(student_limit((1 - SURE) / 2, error.freedom) * error.share)


def _efficient(factor: float, cards: int, least: float, what: str, sure: float | None) -> Verdict:
    """The efficiency as measured decides; how sure it is, is said."""
    efficiency = factor / cards
    got, wanted = compared(efficiency, least, "share")
    ok = efficiency >= least
    interval = _interval(efficiency, sure, least)
    sentence = f"{what}: speed-up {quantity(factor, 'x')}, efficiency {got} ({interval}), wanted at least {wanted}"
    return Verdict(EFFICIENCY, ok, got, f"at least {wanted}", sentence, kind=Kind.EFFICIENCY)


def _interval(efficiency: float, sure: float | None, least: float) -> str:
    if sure is None:
        return "one round each: how sure that is, is not known"
    low, high = efficiency / sure, efficiency * sure
    text = f"{quantity(low, 'share')} to {quantity(high, 'share')}, {SURE * 100:g} % sure by the rounds' spread"
    return f"{text}: too near to tell" if low < least <= high else text


def _p_core(outcome: Outcome | None) -> float:
    value = outcome.value("p_core") if outcome else None
    return math.nan if value is None else value


def _positive(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0
