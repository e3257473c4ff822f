"""Who was slow: by the forward pass, the part of a step in which no rank waits for another."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from flagperf_driver.perflog import number
from pytest_flagperf.results.logs.failures import RankLocation
from pytest_flagperf.results.logs.ranklog import RankLog, whole
from pytest_flagperf.results.measured.metrics import MetricValue
from pytest_flagperf.results.units import quantity

LEAST_STEPS = 20
SLOW = 1.5
"""Times as long as the others' median; less than that is often chance."""


def find(places: Sequence[RankLocation], logs: Mapping[int, RankLog]) -> Iterator[str]:
    """A sentence for each rank that held up the others, or for its host where all of that host's did."""
    times = {place: time for place in places if (time := _forward(logs[place.rank])) is not None}
    slow = {place: ratio for place in times if (ratio := _ratio(place, times)) >= SLOW}
    for host in dict.fromkeys(place.host for place in slow):
        mine = [place for place in times if place.host == host]
        late = [place for place in mine if place in slow]
        worst = max(late, key=lambda place: slow[place])
        whose = host if len(late) == len(mine) and len(mine) < len(times) else _named(late)
        other = times[worst] / slow[worst]
        yield (
            f"{whose} held up the others: a forward pass takes {slow[worst]:.2g} times as long as the other ranks' "
            f"({quantity(times[worst], 's')} against {quantity(other, 's')})"
        )


def spread(logs: Mapping[int, RankLog]) -> Iterator[MetricValue]:
    """The slowest rank against the middle one, also where nobody held up anyone; not there for a rank alone."""
    times = [time for log in logs.values() if (time := _forward(log)) is not None]
    if len(times) < 2:
        return
    finished = next(log.finished for log in logs.values() if _forward(log) is not None) or {}
    warmup, steps = whole(finished.get("warmup_steps")), whole(finished.get("measured_steps"))
    how = f"the slowest rank's mean forward pass over {steps:,} steps, over the median of {len(times):,} ranks"
    value = max(times) / statistics.median(times)
    yield MetricValue("straggler_spread", value, "x", "lower", how, samples=len(times), warmup=warmup)


def _forward(log: RankLog) -> float | None:
    finished = log.finished or {}
    seconds = number(finished.get("forward_time"))
    return seconds if seconds > 0 and whole(finished.get("measured_steps")) >= LEAST_STEPS else None


def _ratio(place: RankLocation, times: Mapping[RankLocation, float]) -> float:
    others = [time for other, time in times.items() if other != place]
    return times[place] / statistics.median(others) if others else 1.0


def _named(places: Sequence[RankLocation]) -> str:
    ranks = ", ".join(str(place.rank) for place in places)
    return f"rank{'s' if len(places) > 1 else ''} {ranks} on {places[0].host}"
