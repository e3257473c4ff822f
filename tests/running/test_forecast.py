"""The forecast of a case before it runs: its convergence, and the duration of a round and of the training."""

from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.case import Case
from pytest_flagperf.kinds.training.forecast import checkpoints, convergence, most_samples, most_steps, training_time
from pytest_flagperf.plan import Plan, PlanRequest, describe, make_plan
from pytest_flagperf.results.comparing.stored_runs import StoredRuns
from pytest_flagperf.running import forecast
from pytest_flagperf.running.forecast import WEEK_S, duration, estimate
from tests.helpers.recording import CONFIG, Training
from tests.helpers.results_help import with_metric
from tests.helpers.stored_runs import add_case, run_of, trained
from tests.helpers.trees import tree, write, write_config


def planned(root: Path, config: str, case: str = "toy:pytorch:X9:1:1:1", **more: Any) -> Plan:
    write_config(root, config, "config_X9x1x1.py")
    return make_plan(tree(root), PlanRequest(Case.parse(case), vendor="acme", check_data=False, **more))


def stored_runs(root: Path) -> StoredRuns:
    return StoredRuns(root / "reports", "run9")


def lines(plan: Plan, root: Path) -> list[str]:
    return list(duration(plan, estimate(plan, stored_runs(root))))


def store(root: Path, number: int, seconds: float, replay: str = "converged_1x1", **plan: Any) -> None:
    config = {**CONFIG, "max_steps": 20}
    own = {"vendor": "acme", "hardware": "X9", "config": config, **plan}
    add_case(root / f"reports/run{number}", replay, [lambda one: with_metric(one, "e2e_time", seconds)], **own)


Stored = list[tuple[float, dict[str, Any]]]
ONE: Stored = [(50.0, {})]
SHORT: Stored = [(3.0, {"replay": "throughput_only"})]


@pytest.mark.parametrize(
    ("stored", "more", "expected"),
    [
        # Rounds of another vendor and another scale do not count.
        (
            [(100.0, {"vendor": "other"}), (100.0, {"scale": "reference"})],
            {},
            "no estimate: no stored run of this case, and neither expected_time_s nor the chip's peak is declared",
        ),
        ([*ONE, (100.0, {})], {}, "about 1 min 40 s per round (median of 1 stored round)"),
        (ONE, {"repeat": 3}, "about 50 s per round, 2 min 30 s for 3 rounds (median of 1 stored round)"),
        (ONE, {"settings": ["train_batch_size=16"]}, "at most 190 ms per round (320 images, 1,684 images/s measured)"),
        (ONE, {"settings": ["max_steps=1000"]}, "at most 20 s per round (1,000 steps at 20 ms in 1 stored round, wi"),
        (SHORT, {}, "at most 400 ms per round (20 steps at 20 ms in 1 stored round, without evaluations)"),
    ],
    ids=["none", "the newest", "all rounds", "another batch", "a shorter training", "throughput only"],
)
def test_a_duration_is_that_of_stored_rounds_or_of_what_is_alike_in_them(
    tmp_path: Path, stored: Stored, more: dict[str, Any], expected: str
) -> None:
    for number, (seconds, of_plan) in enumerate(stored):
        store(tmp_path, number, seconds, **of_plan)
    case = f"toy:pytorch:X9:1:1:{more.pop('repeat', 1)}"
    (line,) = lines(planned(tmp_path, "", case, scale="small", **more), tmp_path)
    assert line.startswith(expected)


def test_the_smallest_limit_gives_the_steps_and_a_declared_time_is_not_in_the_fingerprint(tmp_path: Path) -> None:
    def most(*settings: str, **more: Any) -> int | None:
        return most_steps(planned(tmp_path, "", scale="small", settings=settings, **more))

    assert (most(), most("max_samples=100"), most("max_samples=100", "max_steps=2")) == (20, 4, 2)
    assert (most("max_steps=None"), most(throughput_only=True)) == (None, 55)
    plain, timed = (planned(tmp_path, text).fingerprint["key"] for text in ("", "expected_time_s = 5\n"))
    assert plain == timed


@pytest.mark.parametrize(("seconds", "too_long"), [(WEEK_S, False), (WEEK_S + 1, True)])
def test_a_declared_time_of_more_than_a_week_is_a_warning(tmp_path: Path, seconds: float, too_long: bool) -> None:
    plan = planned(tmp_path, f"ratio = 0.25\nexpected_time_s = {seconds}\n", throughput_only=False)
    first, *more = lines(plan, tmp_path)
    assert first.endswith(" per round (vendors/acme/toy-pytorch/config/config_X9x1x1.py:2)")
    assert more == (["MORE THAN A WEEK: a standard case must converge within a week"] if too_long else [])
    text = describe(plan, duration=[first, *more]).splitlines()
    at = text.index(f"  duration  {first}")
    assert ("MORE THAN A WEEK" in text[at + 1]) is too_long
    assert max(map(len, text)) <= 120


@pytest.mark.parametrize(
    ("config", "samples"),
    [
        ("max_steps = 100\ngradient_accumulation_steps = 4\n", 12_800),
        ("max_steps = 100\nmax_samples = 999\n", 999),
        ("max_epochs = 7\n", 21),  # of the 3 files of the training data
        ("max_time_s = 7.0\n", None),
    ],
)
def test_the_limits_of_a_config_give_the_number_of_samples(tmp_path: Path, config: str, samples: float | None) -> None:
    assert most_samples(planned(tmp_path, config)) == samples


def test_without_a_stored_run_the_estimate_is_from_the_peak(tmp_path: Path) -> None:
    # 30 % of 80.5 TFLOP/s, 24 GFLOP each: 1,006 images/s.
    plan = planned(tmp_path, "max_samples = 3622500\n")
    assert training_time(plan, stored_runs(tmp_path)) == (
        "estimated 1 h 0 min for at most 3,622,500 images (1,006 images/s at an assumed 30 % of the peak)"
    )
    unlimited = planned(tmp_path, "")
    assert training_time(unlimited, stored_runs(tmp_path)) == "duration unknown: no limit on samples"
    no_peak = planned(tmp_path, 'max_samples = 10\nprecision = "fp16"\n')
    assert training_time(no_peak, stored_runs(tmp_path)) == (
        "duration unknown: no stored throughput and no declared peak"
    )


@pytest.mark.parametrize(
    ("throughput_only", "text"),
    [
        # 1,006 images/s, as above; a round for throughput has 5 steps of warm-up and 50 measured ones, of 32 images.
        (True, "about 1.75 s per round (1,760 images, 1,006 images/s at an assumed 30 % of the peak)"),
        (False, "at most 1 h 0 min per round (3,622,500 images, 1,006 images/s at an assumed 30 % of the peak)"),
    ],
)
def test_the_duration_of_a_round_without_a_stored_run_is_from_the_peak(
    tmp_path: Path, throughput_only: bool, text: str
) -> None:
    plan = planned(tmp_path, "max_samples = 3622500\n", throughput_only=throughput_only)
    assert lines(plan, tmp_path) == [text]


def test_the_interval_of_checkpoints_follows_from_a_stored_pause(tmp_path: Path) -> None:
    settings = ["failure_interval_s=225000", "checkpoint_dir=/checkpoints"]
    plan = planned(tmp_path, "", throughput_only=False, settings=settings)
    (line,) = checkpoints(plan, stored_runs(tmp_path))
    assert line == (
        "a checkpoint after 50 steps, then at the interval that follows from its pause and one failure in 2 d 14 h"
        " (failure_interval_s)"
    )
    training = Training(
        "saves",
        model="toy",
        hardware="X9",
        vendor="acme",
        scale=plan.scale,
        finished=lambda end: {**end, "save_pause": 4.0},
    )
    trained(tmp_path / "reports" / "run0", training)
    (line,) = checkpoints(plan, stored_runs(tmp_path))
    assert line == (
        "a checkpoint every 22 min 18 s: a pause of 4 s in 1 stored round, one failure in 2 d 14 h (failure_interval_s)"
    )
    for others in ([*settings, "checkpoint_steps=9"], []):
        plan = planned(tmp_path, "", throughput_only=False, settings=others)
        assert not list(checkpoints(plan, stored_runs(tmp_path)))


@pytest.mark.parametrize(
    ("change", "verified"),
    [
        ({}, True),
        ({"vendor": "other"}, False),
        ({"scale": "small"}, False),
        ({"nproc": 8}, False),
        ({"converged": False}, False),
    ],
)
def test_a_published_result_verifies_only_its_own_case(tmp_path: Path, change: dict[str, Any], verified: bool) -> None:
    plan = planned(tmp_path, "max_samples = 10\n", throughput_only=False)
    properties = {"vendor": "acme", "hardware": "X9", "scale": "reference", **change}
    replay = "converged_1x1" if properties.pop("converged", True) else "missed_target"
    run = run_of(tmp_path / "elsewhere" / "run1", replay, **properties)
    published = tmp_path / "published"
    for name in ("results.json", "SHA256SUMS"):
        write(published, f"new-chips/{name}", (run / name).read_text(encoding="utf-8"))
    text = convergence(plan, stored_runs(tmp_path), forecast.published([published, tmp_path / "missing"]))
    if verified:
        assert text == "verified in new-chips/results.json"
    else:
        assert text == "not verified: no stored or published run of this case reached its target"


def test_a_damaged_published_result_verifies_nothing(tmp_path: Path) -> None:
    plan = planned(tmp_path, "max_samples = 10\n", throughput_only=False)
    write(tmp_path, "published/new-chips/results.json", "{")
    results = forecast.published([tmp_path / "published"])
    assert convergence(plan, stored_runs(tmp_path), results).startswith("not verified")


def test_a_case_that_need_not_converge_is_not_called_unverified(tmp_path: Path) -> None:
    plan = planned(tmp_path, "max_samples = 10\n")
    assert convergence(plan, stored_runs(tmp_path), []).startswith(
        "not required; --no-throughput-only trains to the target, estimated 9.94 ms for at most 10 images"
    )
    assert convergence(planned(tmp_path, "", synthetic=True), stored_runs(tmp_path), []) == ""
