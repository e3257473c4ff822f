"""What p_core leaves out of the time between TRAIN_START and TRAIN_END: each part has a name and a bound.

The suite sets the bounds (``left_out`` in suite.toml). Beyond a bound p_core is not the speed of the training: work was
moved out of the steps that it counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pytest_flagperf.results.measured.consistency_pairs import FigureBounds, Pair, RankFigures, Tolerance
from pytest_flagperf.stored.plan import LeftOutTimeLimits

INF = math.inf
WARM_UP, CHECKING, REQUESTED = 0.1, 0.05, 0.5
"""Shares of the training, the same for all suites; REQUESTED: for what the config requests."""
HALF = 0.5
"""The forward pass counts as at most this share of a step: what a vendor adds to it must not allow more evaluation."""
ONCE = 0.02
"""The share of the training for what an evaluation does once, however few samples a rank has of it."""


def _within(
    seconds: Callable[[RankFigures], float], most: Callable[[RankFigures, LeftOutTimeLimits], float]
) -> Callable[[RankFigures], FigureBounds | None]:
    """Return the comparison of a part's seconds with the most that the suite allows."""

    def compare(rank: RankFigures) -> FigureBounds | None:
        if rank.left_out is None:
            return None
        return FigureBounds(seconds(rank), -INF, most(rank, rank.left_out), rank.stood_still_s)

    return compare


def _waited(rank: RankFigures) -> float:
    return rank.here("input_wait_time", "input_wait_time")


def _evaluated(rank: RankFigures) -> float:
    return rank.here("eval_time", "eval_time")


def _checked(rank: RankFigures) -> float:
    return rank.here("check_time", "check_time")


def _saved(rank: RankFigures) -> float:
    return rank.here("save_time", "save_time")


def _rest(rank: RankFigures) -> float:
    return rank.train_s - rank.windows_s - _evaluated(rank) - _checked(rank) - _saved(rank)


def _step(rank: RankFigures) -> float:
    """The mean compute time of a measured step, by p_core."""
    return _per_step(rank, rank.get("measured_samples") / rank.get("p_core"))


def _per_step(rank: RankFigures, value: float) -> float:
    """Divide by the measured steps; NaN for a start that ended within its warm-up."""
    steps = rank.get("measured_steps")
    return value / steps if steps else math.nan


def _usual_warm_up(rank: RankFigures, _: LeftOutTimeLimits) -> float:
    """The most seconds for the warm-up: steps that take as long as the others, and what a first step may do once."""
    compiling = rank.get("compile_time") if rank.config.get("compile") else 0.0
    return rank.get("warmup_steps") * _step(rank) + WARM_UP * rank.train_s + compiling


def _evaluation(rank: RankFigures, allowed: LeftOutTimeLimits) -> float:
    """The most seconds for the model in evaluations, from the time of the rank's own forward pass in training."""
    samples, step = _per_step(rank, rank.get("measured_samples") / rank.data_ranks), _step(rank)
    forward = rank.get("forward_time")
    # A step that is one compiled graph has no mark within it.
    forward = step if math.isnan(forward) else min(forward, HALF * step)
    of_samples = allowed.evaluation * rank.get("eval_samples") * forward / samples
    return of_samples + ONCE * rank.train_s + _compiled(rank)


def _compiled(rank: RankFigures) -> float:
    """The time for compiling the first evaluation if it is in the training; at most that for compiling a step."""
    if not rank.config.get("compile") or rank.log.untrained is not None:
        return 0.0
    return min(rank.get("compile_time"), rank.log.totals.longest_evaluation_s)


def _saving(rank: RankFigures) -> float:
    requested = rank.config.get("checkpoint_steps") or rank.config.get("failure_interval_s")
    return REQUESTED * rank.train_s if requested else CHECKING * rank.train_s if rank.saves_states else 0.0


def _checking(rank: RankFigures) -> float:
    return (REQUESTED if rank.config.get("replica_check_steps") else CHECKING) * rank.train_s


def _evaluations_seen(rank: RankFigures) -> FigureBounds | None:
    seen = _seen(rank)
    return None if seen is None else FigureBounds(_evaluated(rank), -INF, rank.train_s - seen[0])


def _steps_seen(rank: RankFigures) -> FigureBounds | None:
    seen, allowed = _seen(rank), rank.left_out
    if seen is None or allowed is None:
        return None
    least, most = seen
    return FigureBounds(rank.windows_s + _checked(rank) + _saved(rank), least - allowed.rest * rank.train_s, most)


def _seen(rank: RankFigures) -> tuple[float, float] | None:
    """The least and the most seconds that are not an evaluation's, by the agent: as it saw them, or saw the others."""
    times = rank.milestone_times
    if times is None or times.evaluations_s is None or times.steps_s is None:
        return None
    (least, most), (least_others, most_others) = times.steps_s, times.evaluations_s
    return max(least, rank.train_s - most_others), min(most, rank.train_s - least_others)


_SHARE = "of the suite x `raw_train_time`, at most"
_STOOD_STILL = "twice the time in which hosts were `unreachable` + that in which ranks waited for a core, if `busy`"
_SHORT, _LONG = (Tolerance(seconds, also=_STOOD_STILL) for seconds in (0.2, 60.0))
_SEEN = Tolerance(0.2, 0.002)

PAIRS: tuple[Pair, ...] = (
    Pair(
        "warm_up", "the time that `p_core` leaves out as the warm-up",
        f"as many measured steps + {100 * WARM_UP:g} % of `raw_train_time` + `compile_time`, at most",
        _within(lambda rank: rank.compute_s - rank.get("measured_steps") * _step(rank), _usual_warm_up), _LONG,
    ),
    Pair(
        "waiting", "the time that `p_core` leaves out as waiting for input, `input_wait_time`,",
        "`left_out.waiting` of the suite x `train_no_eval_time`, at most",
        _within(_waited, lambda rank, allowed: allowed.waiting * rank.no_eval_s), _SHORT,
    ),
    Pair(
        "evaluation", "the time that `p_core` leaves out as the model's in evaluations, `eval_model_time`,",
        "`left_out.evaluation` of the suite x the forward time of `eval_samples`"
        f" + {100 * ONCE:g} % of `raw_train_time`, at most",
        _within(lambda rank: rank.get("eval_model_time"), _evaluation), Tolerance(0.5, 0.05, also=_STOOD_STILL),
    ),
    Pair(
        "summarizing", "the other time that `p_core` leaves out in evaluations, `eval_time` - `eval_model_time`,",
        f"`left_out.summarizing` {_SHARE}",
        _within(
            lambda rank: _evaluated(rank) - rank.get("eval_model_time"),
            lambda rank, allowed: allowed.summarizing * rank.train_s,
        ), _SHORT,
    ),
    Pair(
        "checking", "the time that `p_core` leaves out as checks, `check_time`,",
        f"{100 * CHECKING:g} % of `raw_train_time`, {100 * REQUESTED:g} % if the config sets `replica_check_steps`,"
        " at most",
        _within(_checked, lambda rank, _: _checking(rank)), _LONG,
    ),
    Pair(
        "saving", "the time that `p_core` leaves out as saving, `save_time`,",
        f"{100 * REQUESTED:g} % of `raw_train_time` if the config saves checkpoints, at most",
        _within(_saved, lambda rank, _: _saving(rank)), _SHORT,
    ),
    Pair(
        "rest", "the time that `p_core` leaves out and that has no name",
        f"`left_out.rest` {_SHARE}",
        _within(_rest, lambda rank, allowed: allowed.rest * rank.train_s), _SHORT,
    ),
    Pair(
        "steps_seen", "`pure_training_computing_time` + `input_wait_time` + `check_time` + `save_time`",
        "when the agent saw all records but EVALUATE, less `left_out.rest` at least", _steps_seen, _SEEN,
    ),
    Pair(
        "eval_time_seen", "`eval_time`", "when the agent saw EVALUATE and the record before, at most",
        _evaluations_seen, _SEEN,
    ),
)  # fmt: skip
