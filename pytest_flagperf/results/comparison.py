"""Two runs side by side: which cases are the same, what makes them unlike, and which figures are worse than noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_flagperf.results.outcome import Outcome
from pytest_flagperf.results.statistics import Summary, summarize
from pytest_flagperf.results.store import CaseResult
from pytest_flagperf.results.units import compared, count, quantity

JUDGED = ("p_whole", "p_train", "p_core")
"""What a regression is looked for in, where nobody says otherwise: of these the noise is small."""
SHOWN = (*JUDGED, "mfu", "step_time_p50", "time_to_target", "e2e_time", "peak_memory")
THRESHOLD = 0.05
_KEYS = ("key", "one_card_key")
_TOLD = ("device", "framework")


@dataclass(frozen=True)
class Change:
    """One metric over the rounds that ended well, then and now."""

    name: str
    unit: str
    direction: str | None
    old: Summary
    new: Summary
    judged: bool

    @property
    def relative(self) -> float | None:
        """By how much of the old median the new one is above it."""
        if self.old.median is None or self.new.median is None or not self.old.median:
            return None
        return (self.new.median - self.old.median) / abs(self.old.median)

    @property
    def spread(self) -> float | None:
        """The larger standard deviation of one round, over its mean; None where no side has two rounds."""
        known = [side.stdev / abs(side.mean) for side in (self.old, self.new) if side.stdev is not None and side.mean]
        return max(known, default=None)

    @property
    def noise(self) -> float | None:
        """Twice the standard error of the difference: what chance alone may do."""
        if self.spread is None:
            return None
        return 2 * self.spread * math.sqrt(1 / self.old.count + 1 / self.new.count)

    def allowed(self, threshold: float) -> float:
        return max(threshold, self.noise or 0.0)

    def worse_by(self) -> float | None:
        if self.relative is None or self.direction not in ("higher", "lower"):
            return None
        return -self.relative if self.direction == "higher" else self.relative

    def regression(self, threshold: float) -> str | None:
        """What is wrong, as a sentence; None where the figure is as it was, or better, or not judged."""
        if not self.judged or self.old.median is None:
            return None
        worse = self.worse_by()
        if worse is None:
            return f"{self.name} was {quantity(self.old.median, self.unit)} and is missing now"
        allowed = self.allowed(threshold)
        if worse <= allowed:
            return None
        old, new = compared(self.old.median, self.new.median, self.unit)
        why = "the threshold" if allowed == threshold else "its noise over the rounds"
        how = "worse" if self.direction == "lower" else "lower"
        return f"{self.name} went from {old} to {new}: {_percent(worse)} {how}, allowed are {_percent(allowed)} ({why})"


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

    def changes(self, judged: Sequence[str] = JUDGED, *, every: bool = False) -> list[Change]:
        """The suite's own metric first, then those that are shown, or every one."""
        names = self._names(every)
        names += [name for name in judged if name not in names]
        return [self._change(name, name in judged) for name in names]

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

    def _change(self, name: str, judged: bool) -> Change:
        known = (one.metric(name) for case in (self.old, self.new) for one in case.outcomes)
        record = next((metric for metric in known if metric is not None), None)
        old, new = (summarize(one.value(name) for one in case.outcomes if one.ok) for case in (self.old, self.new))
        return Change(name, record.unit if record else "", record.direction if record else None, old, new, judged)


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


def differences(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Field by field; the keys are told only where nothing else is known to differ."""
    if not old or not new:
        return [] if old == new else [f"fingerprint: {'known' if old else 'none'} -> {'known' if new else 'none'}"]
    if old.get("key") == new.get("key"):
        return []
    names = [name for name in dict.fromkeys([*old, *new]) if name not in _KEYS and old.get(name) != new.get(name)]
    return [f"{name}: {_said(old.get(name))} -> {_said(new.get(name))}" for name in names or ["key"]]


def unlike(first: Outcome, second: Outcome) -> list[str]:
    """What makes two rounds' figures unlike: of their fingerprints, and what older ones do not hold."""
    found = differences(first.fingerprint, second.fingerprint)
    for name in ("vendor", "hardware", "scale", "synthetic", "throughput_only"):
        then, now = getattr(first, name), getattr(second, name)
        if then != now and not any(text.startswith(f"{name}:") for text in found):
            found.append(f"{name}: {_said(then)} -> {_said(now)}")
    return found


def _pair(old: CaseResult, new: CaseResult) -> Pair:
    first, second = old.outcomes[0], new.outcomes[0]
    notes = []
    for name in _TOLD:
        told = first.environment.get(name), second.environment.get(name)
        if told[0] != told[1] and None not in told:
            notes.append(f"{name}: {told[0]} -> {told[1]}")
    return Pair(old, new, tuple(unlike(first, second)), tuple(notes))


def plain_name(case: CaseResult) -> str:
    """The case without its number of rounds."""
    return case.case.rpartition(":")[0]


def _shape(case: CaseResult) -> tuple[object, ...]:
    one = case.outcomes[0]
    return one.model, one.framework, one.nnodes, one.nproc


def _converged(case: CaseResult) -> tuple[int, int] | None:
    meant = sum(not outcome.throughput_only for outcome in case.outcomes)
    return None if case.converged is None else (case.converged, meant)


def _said(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _percent(share: float) -> str:
    return quantity(share, "share")
