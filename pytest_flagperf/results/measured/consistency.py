"""Compare a rank's figures with what others saw: ``PAIRS`` has all, docs/measuring.md explains them.

The others are the agent, the host's clock, the devices' counters, the other ranks and the starts before. What the
training loop measures in two ways by itself is compared by the loop's own tests. A pair is compared if both of its
figures are present. Beyond its tolerance the round fails, because one of the two figures is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from flagperf_driver import events
from flagperf_driver.perflog import number
from pytest_flagperf.results.logs.failures import RankLocation
from pytest_flagperf.results.measured import left_out
from pytest_flagperf.results.measured.consistency_pairs import FigureBounds, Pair, RankFigures, Tolerance
from pytest_flagperf.stored.round_dir import RoundFault

CONTRADICTION = "contradiction"
"""The kind of these failures."""
INF = math.inf


def check(ranks: Sequence[tuple[RankLocation, RankFigures]], number_: int) -> tuple[int, tuple[RoundFault, ...]]:
    """Return the number of compared pairs of ranks with FINISHED, and a failure for each contradiction."""
    pairs, failures = 0, list[RoundFault]()
    for place, rank in ranks:
        if rank.log.finished is None:
            continue
        for pair in PAIRS:
            bounds = pair.of(rank)
            if bounds is None:
                continue
            pairs += 1
            sentence = pair.contradiction(bounds)
            if sentence is not None:
                text = f"round {number_}: {place}: {sentence} (pair {pair.name})"
                failures.append(RoundFault(CONTRADICTION, place.host, place.rank, text))
    return pairs, tuple(failures)


def _two_names(rank: RankFigures) -> FigureBounds | None:
    names = rank.log.names
    return FigureBounds(names.differences, 0.0, 0.0, which=names.difference) if names.has_both else None


def _train_agent(rank: RankFigures) -> FigureBounds | None:
    between = rank.milestone_times.seconds(events.TRAIN_START, events.TRAIN_END) if rank.milestone_times else None
    return None if between is None else FigureBounds(rank.train_s, *between)


def _since_start_agent(name: str, milestone: str) -> Callable[[RankFigures], FigureBounds | None]:
    """At most the time since the process started, at least that since its first record."""

    def compare(rank: RankFigures) -> FigureBounds | None:
        times = rank.milestone_times
        if times is None:
            return None
        most, least = times.seconds(None, milestone), times.seconds(events.INIT_START, milestone)
        return None if most is None or least is None else FigureBounds(rank.get(name), least[0], most[1])

    return compare


def _record_times(rank: RankFigures) -> FigureBounds | None:
    """The largest difference between the time of a record and the time at which the agent saw it."""
    if rank.milestone_times is None:
        return None
    outside = [
        (max(after.ms - at, at - by.ms, 0) / 1000, event)
        for event, (after, by) in rank.milestone_times.milestones.items()
        if (at := rank.log.milestones_ms.get(event)) is not None
    ]
    if not outside:
        return None
    most, event = max(outside)
    return FigureBounds(most, 0.0, 0.0, rank.clock_set_s, event)


def _all_record_times(rank: RankFigures) -> FigureBounds | None:
    """Of so many records, one may be written late: the rank's process waited between the two."""
    times = rank.milestone_times
    return None if times is None else FigureBounds(times.off_s, 0.0, 0.0, rank.clock_set_s)


def _within_the_round(rank: RankFigures) -> FigureBounds | None:
    return None if rank.round_s is None else FigureBounds(rank.get("e2e_time"), -INF, rank.round_s)


def _host_clock(rank: RankFigures) -> FigureBounds:
    by_host = rank.get("windows_time")
    tolerance = 0.002 * rank.log.logged_steps
    if (rank.config.get("gradient_accumulation_steps") or 1) > 1:
        # Batches without a whole step at the end of an epoch are in no window of the device.
        tolerance += rank.mean_step_s * (rank.get("epochs") + 1)
    return FigureBounds(rank.windows_s, by_host, by_host, tolerance)


# -- ranks and devices ---------------------------------------------------------------------------------------


def _as_first(name: str) -> Callable[[RankFigures], FigureBounds | None]:
    def compare(rank: RankFigures) -> FigureBounds | None:
        first = number(rank.first.get(name))
        return FigureBounds(rank.get(name), first, first)

    return compare


def _train_time_of_ranks(rank: RankFigures) -> FigureBounds:
    """All ranks end together; a rank that started later trained for less time."""
    first = number(rank.first.get("raw_train_time"))
    later = (rank.log.train_start_ms or math.nan) - rank.first_start_ms
    return FigureBounds(rank.get("raw_train_time"), first, first, abs(later) / 1000 + rank.clock_set_s)


def _resumed_step(rank: RankFigures) -> FigureBounds | None:
    if rank.chain is None or not rank.chain.is_whole or rank.log.first_step is None:
        return None
    return FigureBounds(rank.log.first_step - 1, 0.0, rank.chain.last_step_before)


def _resumed_time(rank: RankFigures) -> FigureBounds | None:
    if rank.chain is None or not rank.chain.is_whole:
        return None
    return FigureBounds(rank.get("raw_train_time"), -INF, rank.chain.trained_s, rank.clock_set_s)


def _energy(rank: RankFigures) -> FigureBounds | None:
    """Compare the device with the largest deviation."""
    worst = max(rank.counted, key=lambda energy: abs(energy.counted - energy.integral) - energy.noise, default=None)
    if worst is None:
        return None
    return FigureBounds(worst.counted, worst.integral, worst.integral, worst.noise, worst.device)


def _points_of_ranks(rank: RankFigures) -> FigureBounds | None:
    """Without a rank's point, the point's figures would be those of the other ranks only."""
    own, first = rank.log.names_of_points, rank.first_points
    if first is None or not own | first:
        return None
    return FigureBounds(len(own ^ first), 0.0, 0.0, which=min(own ^ first, default=""))


_SET = "what the clock was set by"
_TIMES = Tolerance(0.2, 0.002)
_RECORDS = Tolerance(0.2, 0.002, also=_SET)
_WRITTEN = Tolerance(0.2, also=_SET)
_SAMPLES = Tolerance(unit="samples")
_STEPS = Tolerance(unit="steps")
_POINTS = Tolerance(unit="points")
_WINDOWS = "`pure_training_computing_time` + `input_wait_time`"

PAIRS: tuple[Pair, ...] = (
    Pair(
        "original_names", "the number of figures with two values", "FlagPerf's name of each and ours", _two_names,
        Tolerance(),
    ),
    Pair("train_time_seen", "`raw_train_time`", "when the agent saw TRAIN_START and TRAIN_END", _train_agent, _TIMES),
    Pair(
        "init_time_seen", "`init_time`", "when the agent started the process, and saw INIT_START and TRAIN_START",
        _since_start_agent("init_time", events.TRAIN_START), _TIMES,
    ),
    Pair(
        "e2e_time_seen", "`e2e_time`", "when the agent started the process, and saw INIT_START and FINISHED",
        _since_start_agent("e2e_time", events.FINISHED), _TIMES,
    ),
    Pair("e2e_time_round", "`e2e_time`", "the harness's own time of the round, at most", _within_the_round, _TIMES),
    Pair("record_times", "how far a milestone's time is off", "when the agent saw it", _record_times, _WRITTEN),
    Pair(
        "all_record_times", "how far any record's time is off", "when the agent saw it", _all_record_times,
        Tolerance(1.0, also=_SET),
    ),
    Pair(
        "device_clock", f"{_WINDOWS}, by the clock of the steps", "`windows_time`: the same by the host's clock",
        _host_clock, Tolerance(0.1, 0.02, also="2 ms for each STEP_END + with accumulation a step for each pass"),
    ),
    *left_out.PAIRS,
    Pair("ranks_steps", "each rank's steps", "those of the first rank", _as_first("steps"), _STEPS),
    Pair("ranks_samples", "each rank's count of samples", "that of the first rank", _as_first("samples"), _SAMPLES),
    Pair(
        "ranks_time", "each rank's `raw_train_time`", "that of the first rank", _train_time_of_ranks,
        Tolerance(0.5, 0.01, also=f"the difference of their TRAIN_START + {_SET}"),
    ),
    Pair(
        "resumed_step", "the step from which a restarted training continued",
        "the last STEP_END of its starts before, at most", _resumed_step, _STEPS,
    ),
    Pair(
        "resumed_time", "`raw_train_time` of a restarted training",
        "the records from TRAIN_START to the last one, of all its starts, at most", _resumed_time, _RECORDS,
    ),
    Pair(
        "ranks_points", "the number of points that only one of two ranks measured",
        "each rank's and the first rank's MEASURED records", _points_of_ranks, _POINTS,
    ),
    Pair(
        "energy", "a device's energy counter", "the integral of its power", _energy,
        Tolerance(share=0.3, unit="J", also="a second's lag of the power + three times its scatter"),
    ),
)  # fmt: skip
