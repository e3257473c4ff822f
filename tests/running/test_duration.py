"""The estimated duration of a round: by stored rounds, else as declared; more than a week has a warning."""

from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.kinds.training.forecast import most_steps
from pytest_flagperf.plan import Plan, describe
from pytest_flagperf.results.comparing.stored_runs import StoredRuns
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.running.forecast import WEEK_S, duration, estimate
from tests.helpers.recording import CONFIG
from tests.helpers.results_help import with_metric
from tests.helpers.stored_runs import add_case
from tests.helpers.trees import tree
from tests.plan.test_plan import planned

NONE = ["no estimate: no stored run of this case, and neither expected_time_s nor the chip's peak is declared"]


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    return tmp_path / "reports"


def of_small(tmp_path: Path, repeat: int = 1, **more: Any) -> Plan:
    catalog = tree(tmp_path / "tree")
    return planned(catalog, f"toy:pytorch:X9:1:1:{repeat}", **{"scale": "small", "synthetic": False, **more})


def store(reports: Path, name: str, seconds: float, replay: str = "converged_1x1", **plan: Any) -> None:
    def change(outcome: Outcome) -> Outcome:
        return with_metric(outcome, "e2e_time", seconds)

    config = {**CONFIG, "max_steps": 20}
    add_case(reports / name, replay, [change], **{"vendor": "acme", "hardware": "X9", "config": config, **plan})


def lines(plan: Plan, reports: Path) -> list[str]:
    return list(duration(plan, estimate(plan, StoredRuns(reports, "run9"))))


def test_without_a_stored_round_and_a_declaration_there_is_no_estimate(tmp_path: Path, reports: Path) -> None:
    assert lines(of_small(tmp_path), reports) == NONE
    # Stored rounds of another vendor and another scale do not count.
    store(reports, "run1", 100.0, vendor="other")
    store(reports, "run2", 100.0, scale="reference")
    assert lines(of_small(tmp_path), reports) == NONE


def test_the_newest_stored_run_counts(tmp_path: Path, reports: Path) -> None:
    store(reports, "run1", 50.0)
    store(reports, "run2", 100.0)
    assert lines(of_small(tmp_path), reports) == ["about 1 min 40 s per round (median of 1 stored round)"]
    text = "about 1 min 40 s per round, 5 min 0 s for 3 rounds (median of 1 stored round)"
    assert lines(of_small(tmp_path, repeat=3), reports) == [text]


def test_of_another_batch_only_the_throughput_counts(tmp_path: Path, reports: Path) -> None:
    store(reports, "run1", 50.0)
    (line,) = lines(of_small(tmp_path, settings=["train_batch_size=16"]), reports)
    assert line == "at most 190 ms per round (320 images, 1,684 images/s measured)"


def test_of_a_shorter_training_only_the_step_time_counts(tmp_path: Path, reports: Path) -> None:
    store(reports, "run1", 50.0)
    (line,) = lines(of_small(tmp_path, settings=["max_steps=1000"]), reports)
    assert line == "at most 20 s per round (1,000 steps at 20 ms in 1 stored round, without evaluations)"


def test_of_rounds_for_throughput_only_the_step_time_counts(tmp_path: Path, reports: Path) -> None:
    store(reports, "run1", 3.0, replay="throughput_only")
    (line,) = lines(of_small(tmp_path), reports)
    assert line == "at most 400 ms per round (20 steps at 20 ms in 1 stored round, without evaluations)"


def test_the_smallest_limit_gives_the_steps_and_a_declared_time_is_not_in_the_fingerprint(tmp_path: Path) -> None:
    assert most_steps(of_small(tmp_path)) == 20
    assert most_steps(of_small(tmp_path, settings=["max_samples=100"])) == 4
    assert most_steps(of_small(tmp_path, settings=["max_samples=100", "max_steps=2"])) == 2
    assert most_steps(of_small(tmp_path, settings=["max_steps=None"])) is None
    assert most_steps(of_small(tmp_path, throughput_only=True)) == 55
    plain = planned(tree(tmp_path / "plain"))
    assert planned(tree(tmp_path / "timed", "expected_time_s = 5\n")).fingerprint["key"] == plain.fingerprint["key"]


@pytest.mark.parametrize(("seconds", "too_long"), [(WEEK_S, False), (WEEK_S + 1, True)])
def test_a_declared_time_of_a_week_is_a_warning(tmp_path: Path, reports: Path, seconds: float, too_long: bool) -> None:
    catalog = tree(tmp_path / "tree", f"ratio = 0.25\nexpected_time_s = {seconds}\n")
    plan = planned(catalog, synthetic=False, check_data=False)
    first, *more = lines(plan, reports)
    assert first.endswith(" per round (vendors/acme/toy-pytorch/config/config_X9x1x8.py:2)")
    assert more == (["MORE THAN A WEEK: a standard case must converge within a week"] if too_long else [])
    text = describe(plan, duration=[first, *more]).splitlines()
    at = text.index(f"  duration  {first}")
    assert ("MORE THAN A WEEK" in text[at + 1]) is too_long
    assert max(map(len, text)) <= 120
