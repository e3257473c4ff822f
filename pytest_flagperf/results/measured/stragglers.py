"""Find slow ranks by the forward pass, the part of a step in which no rank waits for another."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from flagperf_driver.node.logs.ranklog import RankLog, whole
from flagperf_driver.perflog import number
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.logs.failures import RankLocation
from pytest_flagperf.results.measured.metrics import MetricValue

LEAST_STEPS = 20
SLOW = 1.5
"""A rank is slow from this multiple of the others' median on; smaller differences are often chance."""


def find(places: Sequence[RankLocation], logs: Mapping[int, RankLog]) -> Iterator[str]:
    """Yield a sentence for the slow ranks of each host, or for the host if all of its ranks are slow."""
    times = {place: time for place in places if (time := _forward(logs[place.rank])) is not None}
    others = medians_of_others(list(times.values()))
    ratios = {place: time / other for (place, time), other in zip(times.items(), others, strict=True)}
    slow = {place: ratio for place, ratio in ratios.items() if ratio >= SLOW}
    for host in dict.fromkeys(place.host for place in slow):
        on_host = [place for place in times if place.host == host]
        late = [place for place in on_host if place in slow]
        worst = max(late, key=lambda place: slow[place])
        ranks = f"rank{'s' if len(late) > 1 else ''} {', '.join(str(place.rank) for place in late)} on {host}"
        name = host if len(late) == len(on_host) and len(on_host) < len(times) else ranks
        other = times[worst] / slow[worst]
        yield (
            f"{name} held up the others: a forward pass takes {slow[worst]:.2g} times as long as the other ranks' "
            f"({quantity(times[worst], 's')} against {quantity(other, 's')})"
        )


def spread(logs: Mapping[int, RankLog]) -> Iterator[MetricValue]:
    """Yield the ratio of the slowest rank to the median rank; nothing for a single rank."""
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


def medians_of_others(times: Sequence[float]) -> list[float]:
    """Return for each value the median of all others, from one sorted list; the value itself if it has no others."""
    if len(times) < 2:
        return list(times)
    in_order = sorted(times)
    middle = (len(times) - 2) // 2, (len(times) - 1) // 2  # the places of the median in a list without one value
    medians = []
    for time in times:
        own = bisect_left(in_order, time)
        medians.append(sum(in_order[place + (place >= own)] for place in middle) / 2)
    return medians
