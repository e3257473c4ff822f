"""A case over stored runs: groups of like ones in their order, and how each metric went in a group."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_flagperf.results.comparing import noise
from pytest_flagperf.results.comparing.comparable import unlike
from pytest_flagperf.results.comparing.comparison import plain_name
from pytest_flagperf.results.comparing.noise import Judgement, Noise, Shift
from pytest_flagperf.results.comparing.statistics import finite
from pytest_flagperf.results.earlier import without_copies
from pytest_flagperf.results.store import CaseResult, Run


@dataclass(frozen=True)
class Entry:
    """The case in one run; ``started_ms`` is None where no file says when that was."""

    run: str
    started_ms: int | None
    case: CaseResult

    def values(self, metric: str) -> list[float]:
        """Of the rounds that ended well."""
        return finite(outcome.value(metric) for outcome in self.case.outcomes if outcome.ok)


@dataclass(frozen=True)
class Group:
    """Like runs, the newest last; ``unlike`` says in what they are not like the newest run of all."""

    entries: tuple[Entry, ...]
    unlike: tuple[str, ...]

    def changed(self) -> list[tuple[Entry, list[str]]]:
        """Where, in a group of runs that were to count as like ones, they are not."""
        found = [(new, differing(old, new)) for old, new in pairwise(self.entries)]
        return [(entry, texts) for entry, texts in found if texts]


@dataclass(frozen=True)
class Trend:
    """One metric over a group's runs, each judged by those before it."""

    metric: str
    unit: str
    runs: tuple[tuple[float, ...], ...]
    judged: tuple[Judgement, ...]
    noise: Noise
    shifts: tuple[Shift, ...]
    """Counted among all runs, also those without a value."""

    @property
    def medians(self) -> list[float | None]:
        return [statistics.median(run) if run else None for run in self.runs]


def groups(runs: Iterable[tuple[str, Run]], case: str, across: Sequence[str] = ()) -> list[Group]:
    """The group with the newest run last; differences in the fields of ``across`` part nothing."""
    entries = sorted(without_copies(entries_of(runs, case), lambda entry: entry.case.outcomes), key=_when)
    found: list[list[Entry]] = []
    for entry in entries:
        mine = next((group for group in found if not differing(group[-1], entry, across)), None)
        if mine is None:
            found.append([entry])
        else:
            mine.append(entry)
    found.sort(key=lambda group: _when(group[-1]))
    return [Group(tuple(group), tuple(differing(group[-1], entries[-1], across))) for group in found]


def entries_of(runs: Iterable[tuple[str, Run]], case: str) -> list[Entry]:
    """By the name of the case with or without its number of rounds."""
    wanted = {case, case.rpartition(":")[0]}
    return [
        Entry(name, _started(run, found), found)
        for name, run in runs
        for found in run.cases
        if plain_name(found) in wanted
    ]


def differing(old: Entry, new: Entry, across: Sequence[str] = ()) -> list[str]:
    texts = unlike(old.case.outcomes[0], new.case.outcomes[0])
    return [text for text in texts if text.partition(":")[0] not in across]


def trend(group: Group, metric: str, least: float = noise.LEAST) -> Trend:
    runs = [tuple(entry.values(metric)) for entry in group.entries]
    known = (one.metric(metric) for entry in group.entries for one in entry.case.outcomes)
    record = next((each for each in known if each is not None), None)
    unit, direction = (record.unit, record.direction) if record else ("", None)
    judged = [
        noise.judge(runs[:number], run, direction=direction, unit=unit, least=least) for number, run in enumerate(runs)
    ]
    shifts = _placed(noise.shifts([statistics.median(run) for run in runs if run], least), runs)
    return Trend(metric, unit, tuple(runs), tuple(judged), noise.measure(runs), shifts)


def _placed(shifts: Iterable[Shift], runs: Sequence[Sequence[float]]) -> tuple[Shift, ...]:
    places = [number for number, run in enumerate(runs) if run]
    return tuple(Shift(each.kind, places[each.first], places[each.last], each.before, each.after) for each in shifts)


def _when(entry: Entry) -> tuple[int, str]:
    return entry.started_ms or 0, entry.run


def _started(run: Run, case: CaseResult) -> int | None:
    told = [outcome.started_ms for outcome in case.outcomes if outcome.started_ms is not None]
    return min(told, default=run.info.started_ms if run.info else None)
