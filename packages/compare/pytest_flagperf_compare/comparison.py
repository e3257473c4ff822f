"""Compare the cases of runs: their differences, and the metrics of the last run that are worse by more than noise."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from pytest_flagperf.case import variant_of
from pytest_flagperf.kind import kind_of
from pytest_flagperf.results.comparing.comparable import config_differences, notes
from pytest_flagperf.results.figures import noise
from pytest_flagperf.results.figures.noise import Judgement
from pytest_flagperf.results.figures.statistics import finite
from pytest_flagperf.results.figures.units import compared, count, quantity, signed
from pytest_flagperf.results.measured.outcome import Outcome, judged_at_points, why_failed
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf.stored.plan import THROUGHPUTS
from pytest_flagperf_page.trend import Trend

NOISY = "too noisy to judge"
NOISIEST = 0.5
"""The noise, as a share of the old value, from which on a change that is within it says nothing."""
_NAME, _END = 17, 6
_BY_USER = ("interrupted", "cancelled")
"""The kinds of faults of a round that a user ended."""
SHOWN = (
    *THROUGHPUTS,
    "mfu",
    "step_time_p50",
    "time_to_target",
    "e2e_time",
    "peak_memory",
    "cost_to_target",
    "cost_per_million",
)


@dataclass(frozen=True)
class Change:
    """One metric of a case: the values of both runs' valid rounds, and the judgement of the new run.

    ``judged``: whether a worse value is a regression.
    """

    name: str
    unit: str
    direction: str | None
    rounds: tuple[tuple[float, ...], tuple[float, ...]]
    judged: bool
    judgement: Judgement

    @property
    def old(self) -> float | None:
        return _median(self.rounds[0])

    @property
    def new(self) -> float | None:
        return _median(self.rounds[1])

    @property
    def texts(self) -> tuple[str, str]:
        """Both runs' values with their unit, with enough digits to differ; empty without a value."""
        then, now = compared(self.old, self.new, self.unit)
        return "" if self.old is None else then, "" if self.new is None else now

    @property
    def share(self) -> str:
        """The change as a share; empty if it is unknown."""
        return "" if self.judgement.change is None else signed(self.judgement.change)

    @property
    def word(self) -> str:
        """The change of a judged metric in one word; empty without a change."""
        changed = self.judged and self.judgement.word in (noise.WORSE, noise.BETTER, noise.CHANGED, noise.IMPLAUSIBLE)
        return self.judgement.word if changed else ""

    @property
    def is_noisy(self) -> bool:
        """Whether a judged metric stayed within a noise that would also hide a large change."""
        limit = self.judgement.error.limit if self.judgement.error else 0.0
        # A threshold above the noise is the user's wish.
        hidden = self.judgement.word == noise.WITHIN and limit >= (self.judgement.needed or 0.0)
        return self.judged and hidden and limit > NOISIEST

    def regression(self) -> str | None:
        """Return a sentence about a judged metric that is worse or missing, else None."""
        if not self.judged or self.old is None:
            return None
        if self.new is None:
            return f"{self.name} was {quantity(self.old, self.unit)} and is missing now"
        judgement = self.judgement
        if judgement.word != noise.WORSE or judgement.change is None:
            return None
        then, now = self.texts
        how = "worse" if self.direction == "lower" else "lower"
        odds = f"; noise goes this far {noise.odds(judgement.chance)}" if judgement.chance is not None else ""
        return (
            f"{self.name} went from {then} to {now}: {_percent(abs(judgement.change))} {how}, "
            f"{judgement.rule('the threshold')}{odds}"
        )


@dataclass(frozen=True)
class CaseRuns:
    """A case in the old and in the new run."""

    names: tuple[str, str]
    """The names of the runs."""
    old: CaseResult
    new: CaseResult

    @property
    def name(self) -> str:
        return (
            self.old.case
            if self.old.without_repeat == self.new.without_repeat
            else f"{self.old.case} -> {self.new.case}"
        )

    @property
    def chips(self) -> tuple[str, str] | None:
        """The chips of both runs if they differ: neither is a level that the other one must keep."""
        old, new = self.old.first.hardware, self.new.first.hardware
        return (old, new) if old != new else None

    @property
    def columns(self) -> Sequence[str]:
        """Short names of both runs."""
        return self.chips or _column_names(self.names)

    @property
    def runs(self) -> list[tuple[str, CaseResult]]:
        """Both runs, the old one first."""
        return [*zip(self.names, (self.old, self.new), strict=True)]

    @property
    def differences(self) -> list[str]:
        """The fields in which configs and machines differ."""
        return config_differences(self.old.outcomes[0], self.new.outcomes[0])

    @property
    def notes(self) -> list[str]:
        """What its kind says of both runs, and the differences that do not prevent a comparison, such as the code."""
        of_kind = kind_of(self.old.first).remarks(self.old.outcomes, self.new.outcomes)
        return [*of_kind, *notes(self.old.outcomes[0], self.new.outcomes[0])]

    @property
    def failed(self) -> list[str]:
        """A sentence for each failed round."""
        return [
            f"{name}: round {outcome.round} failed: {why_failed(outcome)}"
            for name, case in self.runs
            for outcome in _ended(case)
            if not outcome.ok
        ]

    @property
    def interrupted(self) -> list[str]:
        """A sentence for each interrupted round: it decides nothing."""
        return [
            f"{name}: round {outcome.round} was interrupted and decides nothing"
            for name, case in self.runs
            for outcome in case.outcomes
            if _is_interrupted(outcome)
        ]

    @property
    def fails_more_often(self) -> str | None:
        """The failed rounds of the new run as a sentence, if all failed or a larger share than before; else None."""
        ended = _ended(self.old), _ended(self.new)
        then, now = ([outcome for outcome in rounds if not outcome.ok] for rounds in ended)
        of_old, of_new = map(len, ended)
        if not now or (len(now) < of_new and len(now) * of_old <= len(then) * of_new):
            return None
        return (
            f"{len(now)} of {count(of_new, 'round')} failed, {len(then)} of {of_old} did before: {why_failed(now[0])}"
        )

    @property
    def invalid(self) -> list[str]:
        """A sentence for each invalid round: it decides nothing."""
        return [
            f"{name}: round {outcome.round} is invalid and decides nothing: {outcome.validity_warnings[0].sentence}"
            for name, case in self.runs
            for outcome in case.outcomes
            if outcome.ok and not outcome.valid
        ]

    @property
    def undecided(self) -> str | None:
        """The reason why the case is not judged: a run has no valid round, and the new run did not fail."""
        ended = _ended(self.new)
        if ended and not any(outcome.ok for outcome in ended):
            return None
        without = [
            name if len(_ended(case)) == len(case.outcomes) else f"{name}, which was interrupted"
            for name, case in self.runs
            if not any(outcome.valid for outcome in case.outcomes)
        ]
        return f"no valid round in {' and '.join(without)}" if without else None

    def ratio(self, changes: Iterable[Change]) -> float | None:
        """Return the new run's main figure over the old one's."""
        main = next((one for one in changes if one.name == self.old.first.main), None)
        return main.new / main.old if main is not None and main.new is not None and main.old else None

    def changes(
        self,
        judged: Sequence[str] = (),
        threshold: float = noise.THRESHOLD,
        like: Sequence[Sequence[Outcome]] = (),
        *,
        every: bool = False,
    ) -> tuple[Change, ...]:
        """Return the suite's own metric, then those in SHOWN or all.

        ``judged``: the metrics that are judged, by default the case's own; ``like``: runs comparable with the old one.
        """
        names = self._names(every)
        first = self.old.outcomes[0]
        own = [*first.judged, *judged_at_points(first)]
        judged = judged or [name for name in own if name in names or self._requires(name)]
        names += [name for name in judged if names and name not in names]
        return tuple(self._change(name, name in judged, threshold, like) for name in names)

    def regressions(self, changes: Iterable[Change]) -> Iterator[str]:
        if self.fails_more_often:
            yield self.fails_more_often
        if self.chips or self.undecided or not any(outcome.ok for outcome in self.new.outcomes):
            return
        yield from (text for change in changes if (text := change.regression()) is not None)
        then, now = (_converged(case) for case in (self.old, self.new))
        if then is not None and now is not None and now[0] * then[1] < then[0] * now[1]:
            yield f"{now[0]} of {count(now[1], 'round')} reached the target, {then[0]} of {then[1]} did before"

    def _names(self, every: bool) -> list[str]:
        valid = [one for case in (self.old, self.new) for one in case.outcomes if one.valid]
        units: dict[str, set[str]] = {}
        for metric in (metric for one in valid for metric in one.metrics):
            units.setdefault(metric.name, set()).add(metric.unit)
        first = self.old.outcomes[0]
        names = [first.target.name, *first.judged, *SHOWN, *(units if every else ())]
        # Costs in two currencies are no change.
        of_rounds = [name for name in dict.fromkeys(names) if len(units.get(name, ())) == 1]
        return [*of_rounds, *(judged_at_points(first) if valid else ())]

    def _requires(self, name: str) -> bool:
        """Return False for a figure of a measurement that may be missing."""
        return all(figure.name != name or figure.is_required for figure in self.old.outcomes[0].figures)

    def _change(self, name: str, judged: bool, threshold: float, like: Sequence[Sequence[Outcome]]) -> Change:
        known = (one.metric(name) for case in (self.old, self.new) for one in case.outcomes)
        record = next((metric for metric in known if metric is not None), None)
        unit, direction = (record.unit, record.direction) if record else ("", None)
        runs = _values(name, self.old.outcomes), _values(name, self.new.outcomes)
        noisy = [_values(name, rounds) for rounds in like]
        judgement = noise.compare(*runs, noisy, direction=direction, least=threshold)
        if judgement.is_implausible and not self.differences:
            judgement = replace(judgement, word=noise.IMPLAUSIBLE)
        return Change(name, unit, direction, runs, judged, judgement)


@dataclass(frozen=True)
class Compared:
    """A case in both runs, its metrics, and the trends of its figures over these runs and the stored ones."""

    row: CaseRuns
    changes: tuple[Change, ...]
    trends: Sequence[Trend]

    def change(self, name: str) -> Change | None:
        return next((change for change in self.changes if change.name == name), None)


def certainty(changes: Iterable[Change], threshold: float) -> str:
    """Return a sentence about the noise of the judged metrics; empty without judged metrics."""
    judged = [change for change in changes if change.judged and change.judgement.change is not None]
    if not judged:
        return ""
    errors = [change.judgement.error for change in judged]
    known = [error for error in errors if error is not None]
    if len(known) < len(errors):
        return f"noise: unknown with one round on each side, judged by the threshold of {_percent(threshold)} alone"
    often = f"noise: chance exceeds it once in {1 / noise.CHANCE:.0f} runs"
    if all(error.source == noise.FROM_RUNS for error in known):
        return f"{often}; measured on {count(min(error.runs for error in known), 'run')} like the old one"
    sides = " and ".join(str(len(side)) for side in judged[0].rounds)
    return (
        f"{often}; measured on the {sides} rounds alone, without effects that all rounds of a run share: "
        f"that needs {noise.FEWEST} stored runs like the old one"
    )


@dataclass(frozen=True)
class Matched:
    """The matched cases; ``lost``: cases only in the old run; ``fresh``: cases only in the new run."""

    rows: tuple[CaseRuns, ...]
    lost: tuple[str, ...]
    fresh: tuple[str, ...]
    is_interrupted: bool = False
    """Whether the new run was interrupted, so that it may not have begun the lost cases."""


def match(
    names: tuple[str, str], old: Sequence[CaseResult], new: Sequence[CaseResult], *, across_hardware: bool
) -> Matched:
    """Match the cases of the old run with those of the new one."""
    partners = _partners(old, new, across_hardware)
    rows = [CaseRuns(names, case, partners[case.case]) for case in old if case.case in partners]
    lost = [case.case for case in old if case.case not in partners]
    matched = {case.without_repeat for case in partners.values()}
    fresh = [case.case for case in new if case.without_repeat not in matched]
    return Matched(tuple(rows), tuple(lost), tuple(fresh))


def _partners(old: Sequence[CaseResult], new: Sequence[CaseResult], across_hardware: bool) -> dict[str, CaseResult]:
    """Match cases by name; with ``across_hardware`` also by all but the hardware, if exactly one case matches."""
    rest = {case.without_repeat: case for case in new}
    partners = {case.case: rest.pop(case.without_repeat) for case in old if case.without_repeat in rest}
    left = [case for case in old if case.case not in partners] if across_hardware else []
    for case in left:
        near = [other for other in rest.values() if _shape(other) == _shape(case)]
        if len(near) == 1 and sum(_shape(other) == _shape(case) for other in left) == 1:
            partners[case.case] = rest.pop(near[0].without_repeat)
    return partners


def _values(name: str, outcomes: Iterable[Outcome]) -> tuple[float, ...]:
    return tuple(finite(one.value(name) for one in outcomes if one.valid))


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _ended(case: CaseResult) -> list[Outcome]:
    """Return the rounds that no user interrupted."""
    return [outcome for outcome in case.outcomes if not _is_interrupted(outcome)]


def _is_interrupted(outcome: Outcome) -> bool:
    return any(failure.kind in _BY_USER for failure in outcome.failures)


def _shape(case: CaseResult) -> tuple[object, ...]:
    one = case.outcomes[0]
    return one.model, one.framework, one.nnodes, one.nproc, variant_of(one.case)


def _converged(case: CaseResult) -> tuple[int, int] | None:
    """Return how many of the rounds that were not interrupted and not invalid reached the target, and were meant to."""
    case = replace(case, outcomes=tuple(outcome for outcome in _ended(case) if not outcome.validity_warnings))
    meant = sum(outcome.meant_to_converge for outcome in case.outcomes)
    return None if case.converged is None else (case.converged, meant)


def _percent(share: float) -> str:
    return quantity(share, "share")


def _shortened(name: str) -> str:
    """Return a run's name for a column head: the ends of run names differ, their beginnings do not."""
    return name if len(name) <= _NAME else f"{name[: _NAME - 12]}...{name[-9:]}"


def _column_names(names: Sequence[str]) -> list[str]:
    """Return short column heads for runs: without a long common beginning of their names."""
    columns = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    common = min(sum(1 for _ in columns), min(map(len, names)) - _END)
    return [f"..{name[common:]}" for name in names] if common > _END else [_shortened(name) for name in names]
