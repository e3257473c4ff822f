"""The verdicts on a speed-up: many cards are faster than one card, and as efficient as declared."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_flagperf.results.figures import noise
from pytest_flagperf.results.figures.statistics import SURE, finite, student_limit
from pytest_flagperf.results.figures.units import compared, count, quantity
from pytest_flagperf.results.measured.outcome import Outcome, counted
from pytest_flagperf.results.verdicts.verdict import Verdict, finished

SPEEDUP, EFFICIENCY = "speedup", "efficiency"


@dataclass(frozen=True)
class OneCard:
    """The throughput of one card, and where that figure is from: "this run", "a short round", ..."""

    p_core: float | None
    where_from: str
    unit: str = ""
    rounds: int = 1
    values: tuple[float, ...] = ()
    """The throughput of each of its rounds, if known."""
    many: tuple[float, ...] = ()
    """The throughputs of all cards in short rounds that alternated with rounds of one card; they count too."""
    busy: str = ""
    """The validity warnings ``busy``, if all of its rounds had one."""

    @classmethod
    def of(cls, values: Sequence[float], where_from: str, unit: str, busy: str = "") -> OneCard:
        """Return the median of rounds."""
        return cls(statistics.median(values), where_from, unit, len(values), tuple(values), busy=busy)

    def with_turn(self, alone: float, many: float) -> OneCard:
        """Add the throughputs of a short round of one card and one of all cards."""
        known = self.values or ((self.p_core,) if self.p_core is not None else ())
        where = self.where_from if self.many else f"{self.where_from}, measured again"
        return replace(OneCard.of([*known, alone], where, self.unit, self.busy), many=(*self.many, many))


def p_cores(outcomes: Iterable[Outcome], one_card: OneCard) -> list[float]:
    """Return p_core of the rounds that count and of short rounds; of busy rounds only without other rounds.

    A restarted training counts never: its p_core is of its last start, perhaps on fewer cards.
    """
    rounds = counted(outcome for outcome in outcomes if not outcome.starts)
    if one_card.many and rounds and rounds[0].busy:
        return list(one_card.many)
    return [*finite(outcome.value("p_core") for outcome in rounds), *one_card.many]


def format_speedup(factor: float, cards: int) -> str:
    """Format a speed-up; a speed-up above the number of cards is noise."""
    return quantity(factor, "x") + (f" (above {cards} cards: noise)" if factor > cards else "")


def speedup(
    outcomes: Sequence[Outcome],
    one_card: OneCard,
    cards: int,
    min_efficiency: float,
    scaling: str,
    *,
    strict: bool = False,
) -> list[Verdict]:
    """Compare the median p_core of the rounds with one card's: it must be faster, and as efficient as declared.

    A failure while other work used the cores becomes a warning, unless ``strict``.
    """
    if not outcomes:
        return [_failure("no round ran", "no round", "a round")]
    ended = [verdict for outcome in outcomes for verdict in finished(outcome)]
    if not all(verdict.ok for verdict in ended):
        return ended
    rounds = [outcome for outcome in outcomes if not outcome.starts]
    if not rounds:
        sentence = "not judged because each round was restarted"
        unknown = _failure(sentence, "restarted: not judged", "a round that was not restarted")
        return [*ended, replace(unknown, ok=True, sentence=sentence, warning=True, judged=False)]
    problem = _no_speedup(rounds, one_card)
    if problem is not None:
        return [*ended, problem]
    assert one_card.p_core is not None
    judged_rounds = counted(rounds)
    values = p_cores(rounds, one_card)
    many = statistics.median(values)
    unit = one_card.unit or judged_rounds[0].rate_unit
    factor = many / one_card.p_core
    rounds_of_many = f" ({count(len(values), 'round')}, {len(one_card.many)} of them short)" if one_card.many else ""
    figures = (
        f"{scaling} scaling: {cards} cards do {quantity(many, unit)}{rounds_of_many},"
        f" one card {quantity(one_card.p_core, unit)} ({one_card.where_from})"
    )
    alone = one_card.values or (one_card.p_core,)
    judged = [
        _faster(factor, cards, figures),
        _efficient(factor, cards, min_efficiency, figures, _uncertainty(alone, values)),
    ]
    busy = "" if one_card.many else "; ".join(dict.fromkeys(outcome.busy for outcome in judged_rounds))
    judged = [_as_busy(verdict, busy, one_card.busy, strict=strict) for verdict in judged]
    if judged[0].ok and judged[1].warning:
        # One warning: the sentence on the efficiency has the speed-up too.
        judged[0] = replace(judged[0], warning=False, sentence="")
    return [*ended, *judged]


def _as_busy(verdict: Verdict, many: str, alone: str, *, strict: bool) -> Verdict:
    """Add the effect of other work on the machine: slow rounds of many cards are not judged, of one card warned of."""
    if not verdict.ok and many and not strict:
        sentence = f"not judged because the machine was busy: {verdict.sentence}"
        got = f"{verdict.got} (busy: not judged)"
        return replace(verdict, ok=True, warning=True, got=got, sentence=sentence, judged=False)
    if not verdict.ok and many:
        return replace(verdict, sentence=f"{verdict.sentence}; the machine was busy: {many}")
    if verdict.ok and alone:
        slow = f"the round of one card was slowed down, so the true value may be lower: {alone.partition('; ')[0]}"
        sentence = f"{verdict.sentence}; {slow}"
        return replace(verdict, warning=True, sentence=sentence)
    return verdict


def _no_speedup(outcomes: Sequence[Outcome], one_card: OneCard) -> Verdict | None:
    """Return a failed verdict if the speed-up cannot be computed."""
    bad = [outcome for outcome in outcomes if not _positive(outcome.value("p_core"))]
    if bad:
        got = quantity(bad[0].value("p_core"))
        return _failure(f"round {bad[0].round}: p_core is {got}", got, "p_core above 0")
    if not _positive(one_card.p_core):
        got = quantity(one_card.p_core)
        return _failure(f"one card's p_core is {got} ({one_card.where_from})", got, "one card's p_core above 0")
    others = [outcome.rate_unit for outcome in outcomes if outcome.rate_unit != one_card.unit]
    if one_card.unit and others:
        reason = f"one card was measured in {one_card.unit}, all cards in {others[0]}"
        return _failure(reason, one_card.unit, others[0])
    return None


def _failure(reason: str, got: str, expected: str) -> Verdict:
    return Verdict(SPEEDUP, False, got, expected, f"cannot compute the speed-up: {reason}", kind=SPEEDUP)


def _faster(factor: float, cards: int, figures: str) -> Verdict:
    got = format_speedup(factor, cards) if factor > cards else compared(factor, 1.0, "x")[0]
    sentence = f"{figures}: speed-up {got}, expected above 1x"
    return Verdict(SPEEDUP, factor > 1, got, "above 1x", sentence, warning=factor > cards, kind=SPEEDUP)


def _uncertainty(alone: Sequence[float], many: Sequence[float]) -> float | None:
    """The factor of the confidence interval of the ratio of both medians; None with one round each."""
    error = noise.of_rounds(alone, many)
    return None if error is None else math.exp(student_limit((1 - SURE) / 2, error.freedom) * error.share)


def _efficient(factor: float, cards: int, least: float, figures: str, uncertainty: float | None) -> Verdict:
    """Judge the measured efficiency; the sentence includes its confidence interval."""
    efficiency = factor / cards
    got, bound = compared(efficiency, least, "share")
    interval = _interval(efficiency, uncertainty, least)
    sentence = (
        f"{figures}: speed-up {format_speedup(factor, cards)}, efficiency {got} ({interval}), expected at least {bound}"
    )
    return Verdict(EFFICIENCY, efficiency >= least, got, f"at least {bound}", sentence, kind=EFFICIENCY)


def _interval(efficiency: float, uncertainty: float | None, least: float) -> str:
    if uncertainty is None:
        return "one round each: uncertainty unknown"
    low, high = efficiency / uncertainty, efficiency * uncertainty
    text = f"{quantity(low, 'share')} to {quantity(high, 'share')} with {SURE * 100:g} % confidence"
    return f"{text}: too close to the bound to be certain" if low < least <= high else text


def _positive(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0
