"""Figures that the training loop measures in two ways: a log that contradicts itself is found."""

from pathlib import Path
from typing import Any

import pytest

from flagperf_driver import perflog
from tests.helpers.loop_figures import contradictions
from tests.helpers.recording import CONFIG, Training, write

# 200 steps of 64 samples in 20 ms, four evaluations of 0.5 s: it trains for 6 s, after 3 s.
WRONG: dict[str, dict[str, Any]] = {
    "raw_train_time": {"raw_train_time": 6.3},
    "init_time": {"init_time": 2.7},
    "e2e_time": {"e2e_time": 9.4},
    "train_no_eval_time": {"train_no_eval_time": 4.1},
    "eval_time": {"eval_time": 2.1},
    "pure_training_computing_time": {"pure_training_computing_time": 4.1},
    "p_whole": {"p_whole": 2140.0},
    "p_train": {"p_train": 3210.0},
    "step_time": {"pure_training_computing_time": 3.7},
    "input_wait": {"input_wait_time": 0.25},
    "throughput": {"samples": 12700},
    "step_time.mean": {"step_time": {"mean": 0.021, "p50": 0.02, "p90": 0.02, "p99": 0.02}},
    "step_time.p50": {"step_time": {"mean": 0.02, "p50": 0.045, "p90": 0.045, "p99": 0.045}},
    "p_core": {"p_core": 3500.0},
    "forward_time": {"forward_time": 0.021},
    "samples": {"samples": 12801},
    "measured_samples": {"measured_samples": 12481},
    "last step": {"steps": 201},
    "last samples": {"samples": 12799},
    "measured_steps": {"measured_steps": 196},
    "warmup_steps": {"warmup_steps": 4},
}


def found(folder: Path, **wrong: Any) -> str:
    training = Training("good", finished=lambda end: {**end, **wrong})
    (path,) = write(training, folder).glob("*/rank0.out.log")
    with path.open("rb") as log:
        return "\n".join(contradictions(perflog.read_records(log), CONFIG))


def test_a_log_that_agrees_with_itself_has_no_contradiction(tmp_path: Path) -> None:
    assert found(tmp_path) == ""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_figure_is_found(tmp_path: Path, name: str) -> None:
    assert f"{name} is " in found(tmp_path, **WRONG[name])
