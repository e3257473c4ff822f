"""Check that a rank's log belongs to its round alone: its token and seed, its times, its first and last records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from flagperf_driver import events
from flagperf_driver.node.logs.ranklog import RankLog
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.logs.failures import RankLocation
from pytest_flagperf.results.logs.milestone_times import MilestoneTimes
from pytest_flagperf.stored.plan import StoredPlan
from pytest_flagperf.stored.round_dir import RoundFault, RoundRecord

LOG = "log"
"""The kind of these failures."""
_ONCE = (events.INIT_END, events.TRAIN_START, events.TRAIN_END, events.FINISHED)
OUTSIDE_S, DRIFT = 2.0, 2e-4
"""Allowed seconds of a record outside its round, and drift per second: offsets are measured once, and clocks drift."""


def find(
    plan: StoredPlan,
    end: RoundRecord | None,
    places: Sequence[RankLocation],
    logs: Mapping[int, RankLog],
    milestone_times: Mapping[int, MilestoneTimes],
    clock_set_s: Mapping[int, float],
) -> Iterator[RoundFault]:
    """Yield at most one failure for each rank, with the first reason."""
    for place in places:
        log = logs[place.rank]
        ahead_s = plan.host(place.noderank).clock_offset_s
        reason = (
            _repeated(plan, log)
            or _written_once(log, place)
            or _outside(end, log, ahead_s, clock_set_s.get(place.rank, 0.0))
            or _not_seen_by_agent(plan, log, milestone_times.get(place.rank))
        )
        if reason:
            sentence = f"round {plan.round}: {place}: its log does not match this round: {reason}"
            yield RoundFault(LOG, place.host, place.rank, sentence)


def _repeated(plan: StoredPlan, log: RankLog) -> str | None:
    """Compare the case, round, seed and token in INIT_END with the plan; older rounds have no token."""
    if plan.token is None:
        return None
    planned = {"case": str(plan.case), "round": plan.round, "seed": plan.seed, "token": plan.token}
    if not log.given and log.finished is not None:
        return f"it has no {events.INIT_END}, which repeats the round's token"
    for given in log.given:
        for name, value in planned.items():
            if given.get(name) != value:
                return f"{events.INIT_END} repeats {name} {given.get(name)!r}, expected {value!r} (plan.json)"
    return None


def _written_once(log: RankLog, place: RankLocation) -> str | None:
    repeated = next((event for event in _ONCE if log.counts.get(event, 0) > 1), None)
    if repeated is not None:
        return f"{repeated} occurs {log.counts[repeated]} times, expected once"
    if log.after_finished not in (None, events.FAILED):
        return f"{log.after_finished} comes after {events.FINISHED}, expected nothing after it"
    if log.other_rank is not None:
        return f"a record is of rank {log.other_rank}, expected rank {place.rank}"
    return None


def _outside(end: RoundRecord | None, log: RankLog, ahead_s: float, clock_set_s: float) -> str | None:
    """Compare the times of the records with the start and end of the round."""
    if end is None or end.started_ms is None or end.ended_ms is None:
        return None
    begin, over = end.started_ms / 1000, end.ended_ms / 1000
    if not begin <= over or log.finished is None:
        return None
    allowed = OUTSIDE_S + DRIFT * (over - begin) + clock_set_s
    for event, time_ms in log.milestones_ms.items():
        at = time_ms / 1000 - ahead_s
        early, late = begin - at, at - over
        if max(early, late) > allowed:
            where = (
                f"{quantity(early, 's')} before its start" if early > late else f"{quantity(late, 's')} after its end"
            )
            return f"{event} was written {where} (round.json), expected within the round"
    return None


def _not_seen_by_agent(plan: StoredPlan, log: RankLog, times: MilestoneTimes | None) -> str | None:
    if plan.token is None or log.finished is None:
        return None
    missing = next((event for event in log.counts if times is None or event not in times.milestones), None)
    return None if missing is None else f"the host's agent did not see {missing} during the round (milestones.json)"
