"""What p_core leaves out: bounds that a vendor's own figures could loosen, reckoned by hand."""

from pathlib import Path
from typing import Any

import pytest

from flagperf_driver.node.logs.ranklog import Evaluation, RankLog
from pytest_flagperf.results.measured import left_out
from pytest_flagperf.results.measured.consistency_pairs import RankFigures
from pytest_flagperf.stored.plan import LeftOutTimeLimits

# Two cards train 100 measured steps of 2 x 10 samples in 1 s each, and evaluate 50 samples on each card.
FINISHED: dict[str, Any] = {
    "raw_train_time": 150.0, "train_no_eval_time": 140.0, "pure_training_computing_time": 105.0, "p_core": 20.0,
    "measured_steps": 100, "measured_samples": 2000, "warmup_steps": 5, "forward_time": 0.3, "compile_time": 8.0,
    "eval_samples": 50, "eval_time": 10.0, "eval_model_time": 2.0, "input_wait_time": 1.0, "check_time": 0.0,
    "save_time": 0.0,
}  # fmt: skip
ONCE = 0.02 * 150


def most(pair: str, config: dict[str, Any] | None = None, *, untrained: bool = True, **finished: Any) -> float:
    """Return the most seconds that a pair allows for a part."""
    log = RankLog(0, Path("rank0.out.log"), finished={**FINISHED, **finished})
    log.untrained = Evaluation(0, 0, 0.0, {}) if untrained else None
    log.totals.longest_evaluation_s = 6.0
    rank = RankFigures(config or {}, 2, log, left_out=LeftOutTimeLimits(0.2, 3.0, 0.2, 0.05))
    (found,) = [item for item in left_out.PAIRS if item.name == pair]
    bounds = found.of(rank)
    assert bounds is not None
    return bounds.most


@pytest.mark.parametrize(
    ("forward_s", "counted_s"),
    [(0.3, 0.3), (0.5, 0.5), (0.9, 0.5), (None, 1.0)],
    ids=["a third", "half", "more than half", "one graph"],
)
def test_the_forward_pass_counts_as_at_most_half_a_step(forward_s: float | None, counted_s: float) -> None:
    assert most("evaluation", forward_time=forward_s) == pytest.approx(3.0 * 50 / 10 * counted_s + ONCE)


def test_a_start_that_ends_within_its_warm_up_has_no_step_to_compare() -> None:
    short = {**FINISHED, "measured_steps": 0, "measured_samples": 0, "p_core": None}
    rank = RankFigures(
        {}, 2, RankLog(0, Path("rank0.out.log"), finished=short), left_out=LeftOutTimeLimits(0.2, 3.0, 0.2, 0.05)
    )
    compared = {pair.name for pair in left_out.PAIRS if pair.of(rank)}
    assert "waiting" in compared
    assert not compared & {"warm_up", "evaluation"}


def test_compiling_checks_checkpoints_and_a_warm_up_take_time_only_where_they_happen() -> None:
    plain = most("evaluation")
    assert most("evaluation", {"compile": True}) == plain
    assert most("evaluation", untrained=False) == plain
    assert most("evaluation", {"compile": True}, untrained=False) == plain + 6.0
    assert most("evaluation", {"compile": True}, untrained=False, compile_time=1.0) == plain + 1.0
    assert (most("checking"), most("checking", {"replica_check_steps": 10})) == (7.5, 75.0)
    assert most("saving") == 0
    assert most("saving", {"checkpoint_steps": 10}) == most("saving", {"failure_interval_s": 9e4}) == 75.0
    assert most("warm_up") == pytest.approx(5.0 + 15.0)
    assert most("warm_up", {"compile": True}) == pytest.approx(5.0 + 15.0 + 8.0)
