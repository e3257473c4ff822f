"""Runs side by side: which cases are the same, what makes them unlike, and which figures are worse than noise."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_flagperf.results.comparing import noise
from pytest_flagperf.results.comparing.comparable import notes, unlike
from pytest_flagperf.results.comparing.noise import Judgement
from pytest_flagperf.results.comparing.statistics import finite
from pytest_flagperf.results.outcome import Outcome
from pytest_flagperf.results.store import CaseResult
from pytest_flagperf.results.units import compared, count, quantity

JUDGED = ("p_whole", "p_train", "p_core")
"""What a regression is looked for in, where nobody says otherwise: of these the noise is small."""
SHOWN = (*JUDGED, "mfu", "step_time_p50", "time_to_target", "e2e_time", "peak_memory")
THRESHOLD = 0.05


@dataclass(frozen=True)
class Change:
    """One metric over the rounds that ended well, then and now; ``judged``: whether being worse is a regression."""

    name: str
    unit: str
    direction: str | None
    old: tuple[float, ...]
    new: tuple[float, ...]
    judged: bool
    judgement: Judgement

    @property
    def medians(self) -> tuple[float | None, float | None]:
        old, new = (statistics.median(side) if side else None for side in (self.old, self.new))
        return old, new

    @property
    def word(self) -> str:
        """How it changed, where it is judged and did."""
        told = self.judged and self.judgement.word in (noise.WORSE, noise.BETTER, noise.CHANGED)
        return self.judgement.word if told else ""

    def regression(self, threshold: float) -> str | None:
        """What is wrong, as a sentence; None where the figure is as it was, or better, or not judged."""
        old, new = self.medians
        if not self.judged or old is None:
            return None
        if new is None:
            return f"{self.name} was {quantity(old, self.unit)} and is missing now"
        found = self.judgement
        if found.word != noise.WORSE or found.change is None or found.needed is None:
            return None
        then, now = compared(old, new, self.unit)
        how = "worse" if self.direction == "lower" else "lower"
        why = "the threshold" if found.needed <= threshold else f"its noise {found.error.source}" if found.error else ""
        sure = f"; noise goes this far {noise.odds(found.chance)}" if found.chance is not None else ""
        return (
            f"{self.name} went from {then} to {now}: {_percent(abs(found.change))} {how}, "
            f"a change counts from {_percent(found.needed)} on ({why}){sure}"
        )


@dataclass(frozen=True)
class Pair:
    """The same case in two runs; ``unlike`` says in which fields their fingerprints differ."""

    old: CaseResult
    new: CaseResult
    unlike: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.old.case if plain_name(self.old) == plain_name(self.new) else f"{self.old.case} -> {self.new.case}"

    def changes(
        self,
        judged: Sequence[str] = JUDGED,
        threshold: float = THRESHOLD,
        like: Sequence[Sequence[Outcome]] = (),
        *,
        every: bool = False,
    ) -> tuple[Change, ...]:
        """The suite's own metric first, then those that are shown, or every one; ``like``: runs like the old one."""
        names = self._names(every)
        names += [name for name in judged if name not in names]
        return tuple(self._change(name, name in judged, threshold, like) for name in names)

    def regressions(self, changes: Iterable[Change], threshold: float) -> Iterator[str]:
        ended = sum(outcome.ok for outcome in self.new.outcomes)
        if not ended:
            yield f"none of {count(len(self.new.outcomes), 'round')} ended well"
            return
        yield from (text for change in changes if (text := change.regression(threshold)) is not None)
        then, now = (_converged(case) for case in (self.old, self.new))
        if then is not None and now is not None and now[0] * then[1] < then[0] * now[1]:
            yield f"{now[0]} of {count(now[1], 'round')} reached the target, {then[0]} of {then[1]} did before"

    def _names(self, every: bool) -> list[str]:
        there = [metric.name for case in (self.old, self.new) for one in case.outcomes for metric in one.metrics]
        targets = [outcome.target.name for outcome in self.old.outcomes[:1]]
        wanted = [*targets, *SHOWN, *(there if every else ())]
        return [name for name in dict.fromkeys(wanted) if name in there]

    def _change(self, name: str, judged: bool, threshold: float, like: Sequence[Sequence[Outcome]]) -> Change:
        known = (one.metric(name) for case in (self.old, self.new) for one in case.outcomes)
        record = next((metric for metric in known if metric is not None), None)
        unit, direction = (record.unit, record.direction) if record else ("", None)
        old, new = (_values(name, case.outcomes) for case in (self.old, self.new))
        runs = [_values(name, rounds) for rounds in like]
        found = noise.compare(old, new, runs, direction=direction, unit=unit, least=threshold)
        return Change(name, unit, direction, old, new, judged, found)


@dataclass(frozen=True)
class Side:
    """A new run's part in a comparison, by the run's name."""

    run: str
    pair: Pair
    changes: tuple[Change, ...]

    def change(self, name: str) -> Change | None:
        return next((change for change in self.changes if change.name == name), None)


@dataclass(frozen=True)
class Together:
    """A case of the old run beside the same case of each new run that has it."""

    old: CaseResult
    sides: tuple[Side, ...]

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(change.name for side in self.sides for change in side.changes))


def certainty(side: Side, threshold: float) -> str:
    """By which noise the judged figures were judged and how sure that makes it, as a sentence."""
    judged = [change for change in side.changes if change.judged and change.judgement.change is not None]
    if not judged:
        return ""
    errors = [change.judgement.error for change in judged]
    known = [error for error in errors if error is not None]
    if len(known) < len(errors):
        return f"noise: not known of one round on each side, judged by the threshold of {_percent(threshold)} alone"
    often = f"noise: chance exceeds it once in {1 / noise.CHANCE:.0f} runs"
    if all(error.source == noise.FROM_RUNS for error in known):
        return f"{often}; measured on {count(min(error.runs for error in known), 'run')} like the old one"
    sides = " and ".join(str(len(side)) for side in (judged[0].old, judged[0].new))
    return (
        f"{often}; measured on the {sides} rounds alone, without what rounds of one run share: "
        f"{noise.FEWEST} stored runs like the old one would tell"
    )


@dataclass(frozen=True)
class Matched:
    """``lost``: cases of the old run without a partner; ``fresh``: those of the new one."""

    pairs: tuple[Pair, ...]
    lost: tuple[str, ...]
    fresh: tuple[str, ...]


def match(old: Sequence[CaseResult], new: Sequence[CaseResult], *, across_hardware: bool = False) -> Matched:
    """By model, framework, hardware and shape; else, when asked, by all but the hardware where that is one case."""
    rest = {plain_name(case): case for case in new}
    pairs, lost = [], []
    for case in old:
        partner = rest.pop(plain_name(case), None)
        pairs += [] if partner is None else [_pair(case, partner)]
        lost += [case] if partner is None else []
    if across_hardware:
        for case in list(lost):
            near = [other for other in rest.values() if _shape(other) == _shape(case)]
            if len(near) == 1 and sum(_shape(other) == _shape(case) for other in lost) == 1:
                pairs.append(_pair(case, rest.pop(plain_name(near[0]))))
                lost.remove(case)
    return Matched(tuple(pairs), tuple(case.case for case in lost), tuple(case.case for case in rest.values()))


def together(sides: Iterable[Side]) -> list[Together]:
    """By the old run's cases, in their order."""
    found: dict[str, list[Side]] = {}
    for side in sides:
        found.setdefault(side.pair.old.case, []).append(side)
    return [Together(each[0].pair.old, tuple(each)) for each in found.values()]


def _pair(old: CaseResult, new: CaseResult) -> Pair:
    first, second = old.outcomes[0], new.outcomes[0]
    return Pair(old, new, tuple(unlike(first, second)), tuple(notes(first, second)))


def plain_name(case: CaseResult) -> str:
    """The case without its number of rounds."""
    return case.case.rpartition(":")[0]


def _values(name: str, outcomes: Iterable[Outcome]) -> tuple[float, ...]:
    return tuple(finite(one.value(name) for one in outcomes if one.ok))


def _shape(case: CaseResult) -> tuple[object, ...]:
    one = case.outcomes[0]
    return one.model, one.framework, one.nnodes, one.nproc


def _converged(case: CaseResult) -> tuple[int, int] | None:
    meant = sum(outcome.meant_to_converge for outcome in case.outcomes)
    return None if case.converged is None else (case.converged, meant)


def _percent(share: float) -> str:
    return quantity(share, "share")
