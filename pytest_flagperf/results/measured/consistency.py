"""Compare figures that are measured in two ways: ``PAIRS`` has them all, docs/measuring.md explains them.

A pair is compared if both of its figures are present. Beyond its tolerance the round fails, because one of the two
figures is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from flagperf_driver import events
from flagperf_driver.node.logs.ranklog import whole
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


# -- names ---------------------------------------------------------------------------------------------------


def _two_names(rank: RankFigures) -> FigureBounds | None:
    names = rank.log.names
    return FigureBounds(names.differences, 0.0, 0.0, which=names.difference) if names.has_both else None


# -- times ---------------------------------------------------------------------------------------------------


def _train_time(rank: RankFigures) -> FigureBounds:
    seconds = rank.between(events.TRAIN_START, events.TRAIN_END)
    return FigureBounds(rank.train_s, seconds, seconds, rank.clock_set_s)


def _finish(rank: RankFigures) -> FigureBounds:
    seconds = rank.get("init_time") + rank.between(events.TRAIN_START, events.FINISHED)
    return FigureBounds(rank.get("e2e_time"), seconds, seconds, rank.clock_set_s)


def _init(rank: RankFigures) -> FigureBounds:
    least = rank.between(events.INIT_START, events.TRAIN_START)
    return FigureBounds(rank.get("init_time"), least, INF, rank.clock_set_s)


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


def _to_target(rank: RankFigures) -> FigureBounds | None:
    reached = rank.log.reached
    if reached is None:
        return None
    ends = (rank.log.finished or {}).get("stop_reason") == "target" and reached == rank.log.last_evaluation
    return FigureBounds(reached.time, rank.train_s if ends else -INF, rank.train_s, rank.clock_set_s)


def _no_eval(rank: RankFigures) -> FigureBounds:
    seconds = rank.log.totals.evaluated_s
    return FigureBounds(rank.train_s - rank.no_eval_s, seconds, seconds, rank.lost_evaluations_s)


def _eval_time(rank: RankFigures) -> FigureBounds:
    seconds = rank.log.totals.evaluated_s
    return FigureBounds(rank.here("eval_time", "eval_time"), seconds, seconds, rank.lost_evaluations_s)


def _evaluations(rank: RankFigures) -> FigureBounds | None:
    totals = rank.log.totals
    if not totals.evaluations:
        return None
    tolerance = rank.clock_set_s + 0.01 * totals.evaluations
    return FigureBounds(totals.evaluated_s, -INF, totals.evaluated_between_s, tolerance)


# -- steps ---------------------------------------------------------------------------------------------------


def _host_clock(rank: RankFigures) -> FigureBounds:
    by_host = rank.get("windows_time")
    tolerance = 0.002 * rank.log.totals.windows
    if rank.configured("gradient_accumulation_steps") > 1:
        # Batches without a whole step at the end of an epoch are in no window of the device.
        tolerance += rank.step_time("mean") * (rank.get("epochs") + 1)
    return FigureBounds(rank.windows_s, by_host, by_host, tolerance)


def _windows(rank: RankFigures) -> FigureBounds:
    return FigureBounds(rank.windows_s, -INF, rank.no_eval_s)


def _logged_windows(rank: RankFigures) -> FigureBounds | None:
    seconds = rank.log.totals.windows_s
    return FigureBounds(seconds, rank.windows_s, rank.windows_s, rank.lost_share * seconds) if seconds else None


def _logged_wait(rank: RankFigures) -> FigureBounds | None:
    if not rank.log.totals.windows:
        return None
    waited = rank.here("input_wait_time", "input_wait_time")
    return FigureBounds(rank.log.totals.waited_s, waited, waited, rank.lost_share * waited)


def _step_time(rank: RankFigures) -> FigureBounds | None:
    totals = rank.log.totals
    if not totals.windows_s or not rank.knows("timing_warmup_steps"):
        return None
    seconds = rank.step_time("mean") * rank.get("measured_steps")
    return FigureBounds(seconds, totals.measured_s, totals.measured_s + totals.straddling_s, rank.lost_share * seconds)


def _percentiles(rank: RankFigures) -> FigureBounds | None:
    """The bounds of the mean: times from a percentile on are at least as long, earlier times at most as long."""
    count = whole(rank.get("measured_steps"))
    p50, p90, p99 = (rank.step_time(name) for name in ("p50", "p90", "p99"))
    if count < 1:
        return None
    at50, at90, at99 = (min(count - 1, int(share * count)) for share in (0.5, 0.9, 0.99))
    least = (at90 - at50) * p50 + (at99 - at90) * p90 + (count - at99) * p99
    most = (at50 + 1) * p50 + (at90 - at50) * p90 + (at99 - at90) * p99 if at99 == count - 1 else INF
    return FigureBounds(rank.step_time("mean"), least / count, most / count)


def _forward(rank: RankFigures) -> FigureBounds:
    return FigureBounds(rank.get("forward_time"), -INF, rank.step_time("mean"))


# -- throughputs ---------------------------------------------------------------------------------------------


def _rate(name: str, seconds: str) -> Callable[[RankFigures], FigureBounds | None]:
    def compare(rank: RankFigures) -> FigureBounds | None:
        took = rank.get(seconds)
        rate = rank.get("samples") / took if took > 0 else math.nan
        return FigureBounds(rank.get(name), rate, rate)

    return compare


def _p_core(rank: RankFigures) -> FigureBounds | None:
    """The seconds are at most all steps' compute time, and at least the measured steps without their waiting."""
    samples, compute = rank.get("measured_samples"), rank.compute_s
    totals = rank.log.totals
    waited = totals.measured_wait_s if totals.windows else rank.here("input_wait_time", "input_wait_time")
    waited += rank.lost_share * rank.here("input_wait_time", "input_wait_time")
    seconds = rank.step_time("mean") * rank.get("measured_steps") - waited
    if not samples > 0 or not compute > 0 or not seconds > 0:
        return None
    return FigureBounds(rank.get("p_core"), samples / compute, samples / seconds)


def _throughputs(rank: RankFigures) -> FigureBounds | None:
    totals = rank.log.totals
    if not totals.rated_samples:
        return None
    samples = totals.samples - rank.earlier("samples")
    return FigureBounds(totals.rated_samples, samples, samples, rank.lost_share * samples)


# -- samples and steps ---------------------------------------------------------------------------------------


def _samples(rank: RankFigures) -> FigureBounds | None:
    steps = rank.get("steps")
    if not rank.per_step or math.isnan(steps):
        return None
    return FigureBounds(rank.get("samples"), *rank.items(steps, _passes(rank)))


def _measured_samples(rank: RankFigures) -> FigureBounds | None:
    steps = rank.get("measured_steps")
    if not rank.per_step or math.isnan(steps):
        return None
    return FigureBounds(rank.get("measured_samples"), *rank.items(steps, _passes(rank)))


def _passes(rank: RankFigures) -> float:
    epochs = rank.get("epochs")
    return max(epochs, 0.0) if math.isfinite(epochs) else 0.0


def _measured_steps(rank: RankFigures) -> FigureBounds:
    steps = max(rank.here("steps", "step") - rank.get("warmup_steps"), 0.0)
    return FigureBounds(rank.get("measured_steps"), steps, steps)


def _warmup(rank: RankFigures) -> FigureBounds | None:
    steps = rank.configured("timing_warmup_steps")
    return FigureBounds(rank.get("warmup_steps"), steps, steps) if steps else None


def _logged_samples(rank: RankFigures) -> FigureBounds | None:
    """The last logged step may be a few steps before the end."""
    totals = rank.log.totals
    if not totals.windows or not rank.per_step:
        return None
    left = rank.get("steps") - totals.step
    return FigureBounds(rank.get("samples"), totals.samples, totals.samples + rank.items(max(left, 0.0), 0.0)[1])


def _logged_steps(rank: RankFigures) -> FigureBounds | None:
    totals = rank.log.totals
    if not totals.windows:
        return None
    every = max(rank.configured("log_freq"), 1)
    return FigureBounds(rank.get("steps"), totals.step, totals.step + (every - 1) + every * rank.log.broken_lines)


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


def _expert_load(rank: RankFigures) -> FigureBounds | None:
    """Compare the load that is judged with the last one of the chart, of the same step."""
    last = rank.log.steps[-1] if rank.log.steps else None
    if last is None or (rank.log.finished or {}).get("expert_load") is None or last.step != rank.get("steps"):
        return None
    logged = last.expert_load or 0.0
    return FigureBounds(rank.get("expert_load"), logged, logged)


def _energy(rank: RankFigures) -> FigureBounds | None:
    """Compare the device with the largest deviation."""
    worst = max(rank.counted, key=lambda energy: abs(energy.counted - energy.integral) - energy.noise, default=None)
    if worst is None:
        return None
    return FigureBounds(worst.counted, worst.integral, worst.integral, worst.noise, worst.device)


# -- points of a measurement ---------------------------------------------------------------------------------


def _points(rank: RankFigures) -> FigureBounds:
    logged = len(rank.log.points)
    return FigureBounds(rank.get("points"), logged, logged)


def _left_out_points(rank: RankFigures) -> FigureBounds:
    logged = len(rank.log.left_out)
    return FigureBounds(rank.get("left_out"), logged, logged)


def _points_of_ranks(rank: RankFigures) -> FigureBounds | None:
    """Without a rank's point, the point's figures would be those of the other ranks only."""
    own, first = rank.log.names_of_points, rank.first_points
    if first is None or not own | first:
        return None
    return FigureBounds(len(own ^ first), 0.0, 0.0, which=min(own ^ first, default=""))


_SET = "what the clock was set by"
_LOST = "steps of lines that cannot be read"
_TIMES = Tolerance(0.2, 0.002)
_RECORDS = Tolerance(0.2, 0.002, also=_SET)
_WRITTEN = Tolerance(0.2, also=_SET)
_SUMS = Tolerance(0.01, 0.002, also=_LOST)
_SHARE = Tolerance(share=0.001)
_RATE = Tolerance(share=0.001, unit="samples/s")
_SAMPLES = Tolerance(unit="samples")
_PASSES = Tolerance(unit="samples", also="short steps at the end of a pass")
_LATER_SAMPLES, _LATER_STEPS = (
    Tolerance(unit=unit, also="less than `log_freq` steps after it") for unit in ("samples", "steps")
)
_STEPS = Tolerance(unit="steps")
_POINTS = Tolerance(unit="points")
_WINDOWS = "`pure_training_computing_time` + `input_wait_time`"
_EVALUATED = "the seconds in all EVALUATE records"
_CARDS = "steps x batch per card x accumulation x cards that read their own samples"

PAIRS: tuple[Pair, ...] = (
    Pair(
        "original_names", "the number of figures with two values", "FlagPerf's name of each and ours", _two_names,
        Tolerance(),
    ),
    Pair("train_time", "`raw_train_time`", "the records TRAIN_START to TRAIN_END", _train_time, _RECORDS),
    Pair("train_time_seen", "`raw_train_time`", "when the agent saw TRAIN_START and TRAIN_END", _train_agent, _TIMES),
    Pair("init_time", "`init_time`", "the records INIT_START to TRAIN_START, at least", _init, _RECORDS),
    Pair(
        "init_time_seen", "`init_time`", "when the agent started the process, and saw INIT_START and TRAIN_START",
        _since_start_agent("init_time", events.TRAIN_START), _TIMES,
    ),
    Pair("e2e_time", "`e2e_time`", "`init_time` + the records TRAIN_START to FINISHED", _finish, _RECORDS),
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
        "time_to_target", "`time_to_target`", "`raw_train_time`: the same if the target ended it, else at most",
        _to_target, _RECORDS,
    ),
    Pair("train_no_eval_time", "`raw_train_time` - `train_no_eval_time`", _EVALUATED, _no_eval, _SUMS),
    Pair("eval_time", "`eval_time`", _EVALUATED, _eval_time, _SUMS),
    Pair(
        "evaluations", _EVALUATED, "the time since the record before each, at most", _evaluations,
        Tolerance(0.1, 0.005, also=f"10 ms for each + {_SET}"),
    ),
    Pair(
        "device_clock", f"{_WINDOWS}, by the clock of the steps", "`windows_time`: the same by the host's clock",
        _host_clock, Tolerance(0.1, 0.02, also="2 ms for each STEP_END + with accumulation a step for each pass"),
    ),
    Pair("computing_time", _WINDOWS, "`train_no_eval_time`, at most", _windows, Tolerance(0.1, 0.005)),
    *left_out.PAIRS,
    Pair("step_times", "`step_time` x steps of all STEP_END records", _WINDOWS, _logged_windows, _SUMS),
    Pair("input_wait", "`input_wait` of all STEP_END records", "`input_wait_time`", _logged_wait, _SUMS),
    Pair(
        "step_time_mean", "`step_time_mean` x measured steps", "`step_time` x steps of STEP_END after the warm-up",
        _step_time, _SUMS,
    ),
    Pair("step_time_percentiles", "`step_time_mean`", "what p50, p90 and p99 allow", _percentiles, _SHARE),
    Pair("forward_time", "the mean forward pass", "`step_time_mean`, at most", _forward, _SHARE),
    Pair("p_whole", "`p_whole`", "samples / `raw_train_time`", _rate("p_whole", "raw_train_time"), _RATE),
    Pair("p_train", "`p_train`", "samples / `train_no_eval_time`", _rate("p_train", "train_no_eval_time"), _RATE),
    Pair(
        "p_core", "`p_core`",
        "measured samples / `pure_training_computing_time` at least,"
        " / (`step_time_mean` x measured steps - their waiting) at most",
        _p_core, Tolerance(share=0.005, unit="samples/s"),
    ),
    Pair(
        "throughputs", "`throughput` x seconds of all STEP_END records", "the samples that they count", _throughputs,
        Tolerance(share=0.002, unit="samples", also=_LOST),
    ),
    Pair("samples", "samples of FINISHED", _CARDS, _samples, _PASSES),
    Pair("measured_samples", "measured samples", f"measured {_CARDS}", _measured_samples, _PASSES),
    Pair("logged_samples", "samples of FINISHED", "the last STEP_END", _logged_samples, _LATER_SAMPLES),
    Pair("logged_steps", "steps of FINISHED", "the last STEP_END", _logged_steps, _LATER_STEPS),
    Pair("measured_steps", "measured steps", "steps - warm-up", _measured_steps, _STEPS),
    Pair("warmup_steps", "steps of warm-up in FINISHED", "`timing_warmup_steps` of the config", _warmup, _STEPS),
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
        "expert_load", "`expert_load` of FINISHED", "the STEP_END of the last step", _expert_load,
        Tolerance(share=0.001, unit="x"),
    ),
    Pair("points", "points of FINISHED", "the rank's MEASURED records", _points, _POINTS),
    Pair("left_out_points", "left-out points of FINISHED", "the rank's LEFT_OUT records", _left_out_points, _POINTS),
    Pair(
        "ranks_points", "the number of points that only one of two ranks measured",
        "each rank's and the first rank's MEASURED records", _points_of_ranks, _POINTS,
    ),
    Pair(
        "energy", "a device's energy counter", "the integral of its power", _energy,
        Tolerance(share=0.3, unit="J", also="a second's lag of the power + three times its scatter"),
    ),
)  # fmt: skip
