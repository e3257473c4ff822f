"""The parts of a training, by the first rank's log, on the clock of the samples."""

import shutil
from pathlib import Path

import pytest

from pytest_flagperf.results.measured import phases
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.outcome import Outcome
from tests.helpers import recording
from tests.helpers.recording import START_MS, Training
from tests.helpers.results_help import edit_json, recorded, replay_dir

START = START_MS / 1000


def spans(outcome: Outcome) -> list[tuple[str, float, float]]:
    """In seconds since the round's start."""
    return [(one.name, round(one.start - START, 3), round(one.end - START, 3)) for one in outcome.phases]


def test_a_training_has_all_of_its_parts_until_it_was_last_heard_of() -> None:
    """Steps of 20 ms, five of them warm-up, an evaluation of 0.5 s before the first and after each 50."""
    assert spans(recorded("converged_1x1")) == [
        ("init", 0.0, 3.0), ("warm-up", 3.0, 3.1), ("train", 3.1, 9.0),
        ("evaluate", 4.0, 4.5), ("evaluate", 5.5, 6.0), ("evaluate", 7.0, 7.5), ("evaluate", 8.5, 9.0),
    ]  # fmt: skip
    outcome = recorded("converged_1x1")
    training = phases.training(outcome.phases)
    assert training is not None
    assert training.seconds == pytest.approx(outcome.value("raw_train_time"), abs=0.002)
    evaluated = sum(one.seconds for one in outcome.phases if one.name == phases.EVALUATE)
    assert evaluated == pytest.approx(outcome.value("eval_time"), abs=0.002)
    assert spans(recorded("killed_rank"))[1:3] == [("warm-up", 3.0, 3.1), ("train", 3.1, 4.9)]
    assert [name for name, _, _ in spans(recorded("crashed_rank"))] == ["init"]
    assert phases.training(recorded("crashed_rank").phases) is None
    assert spans(recorded("throughput_only")) == [("init", 0.0, 2.5), ("warm-up", 2.5, 2.6), ("train", 2.6, 3.6)]


def test_the_offset_of_the_hosts_clock_is_taken_off(tmp_path: Path) -> None:
    hosts = ({"name": "far", "address": "10.0.0.1", "clock_offset_s": 3600.0},)
    assert spans(measure(recording.write(Training("ahead", hosts=hosts), tmp_path))) == spans(recorded("converged_1x1"))


@pytest.mark.parametrize(("steps", "end"), [(1, 3.02), (10, 3.2), (13, 3.26), (1000, 9.0)])
def test_the_warm_up_ends_between_logged_steps_too(tmp_path: Path, steps: int, end: float) -> None:
    """Every tenth is logged. A warm-up that outlasts the training leaves no time to train."""
    shutil.copytree(replay_dir("converged_1x1"), tmp_path / "round1")
    edit_json(tmp_path / "round1" / "plan.json", config={"timing_warmup_steps": steps})
    found = spans(measure(tmp_path / "round1"))
    assert ("warm-up", 3.0, end) in found
    assert [one for one in found if one[0] == "train"] == ([("train", end, 9.0)] if end < 9 else [])


def test_without_a_warm_up_all_is_training(tmp_path: Path) -> None:
    shutil.copytree(replay_dir("converged_1x1"), tmp_path / "round1")
    edit_json(tmp_path / "round1" / "plan.json", config={})
    assert spans(measure(tmp_path / "round1"))[:2] == [("init", 0.0, 3.0), ("train", 3.0, 9.0)]
