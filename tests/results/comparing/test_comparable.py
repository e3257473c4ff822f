"""Comparable earlier runs: found in their order with few files read; by fingerprints and machines, field by field."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.results.comparing.comparable import fingerprint_differences, notes, outcome_differences
from pytest_flagperf.results.comparing.one_card import find_one_card
from pytest_flagperf.results.comparing.stored_runs import StoredRuns
from pytest_flagperf.results.figures import noise
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.verdicts import Verdict, VerdictKind
from tests.helpers.results_help import edit_json, recorded
from tests.helpers.stored_runs import add_case, faster, run_of

PRINT = {"suite_code": "s1", "driver_code": "d1", "precision": "fp32", "key": "k1"}


@pytest.fixture
def made(tmp_path: Path) -> Path:
    add_case(tmp_path / "made", "converged_1x1", faster(1.0, 1.0), fingerprint=PRINT)
    return tmp_path / "made"


def stored(made: Path, number: int, **changes: Any) -> Path:
    """Another such run, of another time."""
    run = made.parent / "reports" / f"run{20260101000000 + number}"
    shutil.copytree(made, run)
    for path in run.glob("*/round*/outcome.json"):
        edit_json(path, started_ms=1_700_000_000_000 + number, **changes)
    return run


def new(made: Path) -> Outcome:
    return store.load_run(made).cases[0].outcomes[0]


def test_like_runs_come_in_their_order_but_for_the_present_one(made: Path) -> None:
    for number in (10, 9, 11):
        stored(made, number)
    found = StoredRuns(made.parent / "reports", "run20260101000011").like(new(made))
    assert [(len(rounds), rounds[0].started_ms) for rounds in found] == [(2, 1_700_000_000_009), (2, 1_700_000_000_010)]


def test_runs_of_other_code_are_comparable_and_runs_of_another_config_are_not(made: Path) -> None:
    own = dict(new(made).fingerprint)
    stored(made, 1, fingerprint={**own, "suite_code": "s2", "key": "k2"})
    assert len(StoredRuns(made.parent / "reports").like(new(made))) == 1
    stored(made, 2, fingerprint={**own, "precision": "other", "key": "k3"})
    stored(made, 3, fingerprint={**own, "driver_code": "d2", "key": "k4"})
    earlier = StoredRuns(made.parent / "reports")
    assert [rounds[0].fingerprint["key"] for rounds in earlier.like(new(made))] == ["k2", "k4"]
    assert [rounds[0].fingerprint["key"] for rounds in earlier.like(new(made), most=1)] == ["k4"]


@pytest.mark.parametrize(
    "changes",
    [{"state": "failed"}, {"validity_warnings": [{"kind": "clock", "sentence": "it went back"}]}, {"schema": 99}],
)
def test_failed_distorted_and_unreadable_rounds_do_not_count(made: Path, changes: dict[str, Any]) -> None:
    stored(made, 1, **changes)
    assert StoredRuns(made.parent / "reports").like(new(made)) == []


def test_a_run_that_regressed_is_no_noise_but_stays_in_the_history(made: Path) -> None:
    for number, kind in enumerate((VerdictKind.BASELINE, VerdictKind.PLUGIN)):
        (case_dir,) = (path for path in stored(made, number).iterdir() if path.is_dir())
        store.save_verdicts(case_dir, "test_throughput", [Verdict("a", False, "1", "2", "lower", kind=kind)])
    runs = StoredRuns(made.parent / "reports")
    assert [rounds[0].started_ms for rounds in runs.like(new(made))] == [1_700_000_000_001]
    assert len(runs.named(new(made))) == 2


def test_a_copy_of_a_run_counts_once(made: Path) -> None:
    run = stored(made, 1)
    shutil.copytree(run, run.with_name("run20260301000000"))
    assert len(StoredRuns(made.parent / "reports").like(new(made))) == 1


def test_another_case_whose_folder_looks_alike_is_another(made: Path) -> None:
    run = stored(made, 1)
    (case_dir,) = (path for path in run.iterdir() if path.is_dir())
    for path in run.glob("*/round*/outcome.json"):
        body = json.loads(path.read_text())
        path.write_text(json.dumps({**body, "case": body["case"].replace("toy:", "toy_")}))
    assert case_dir.exists()
    assert StoredRuns(made.parent / "reports").like(new(made)) == []


def test_of_many_runs_no_more_are_read_than_count_and_each_once(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(noise.MEMORY + 20):
        stored(made, number)
    read: list[Path] = []
    load = store.load_outcome
    monkeypatch.setattr(store, "load_outcome", lambda path: read.append(path) or load(path))  # type: ignore[func-returns-value]
    earlier = StoredRuns(made.parent / "reports")
    for _ in range(2):
        assert len(earlier.like(new(made))) == noise.MEMORY
    reports = [path for path in read if "reports" in path.parts]
    assert len(reports) == 2 * noise.MEMORY


# -- which rounds' figures may be compared: their fingerprints and machines, field by field ------------------

COMPARED = {"key": "a", "one_card_key": "o", "precision": "fp32", "config": "c1", "deviations": {}}
RAN_ON = {"driver": "550.54", "kernel": "6.1", "chip": "X9", "os": "Linux 12", "variables": "none"}


def outcome(ran_on: dict[str, Any] | None = None, **fingerprint: Any) -> Outcome:
    return replace(recorded("converged_1x1"), machine=ran_on or {}, fingerprint={**COMPARED, **fingerprint})


def test_rounds_are_like_unless_their_machines_differ_and_unknown_fields_do_not_count() -> None:
    assert outcome_differences(outcome(RAN_ON), outcome({**RAN_ON})) == []
    assert notes(outcome(RAN_ON), outcome({**RAN_ON})) == []
    other = outcome({**RAN_ON, "driver": "560.35", "os": "Linux 13", "variables": "MKL_A=1"})
    assert outcome_differences(outcome(RAN_ON), other) == ["driver: 550.54 -> 560.35"]
    assert notes(outcome(RAN_ON), other) == ["os: Linux 12 -> Linux 13", "variables: none -> MKL_A=1"]
    assert outcome_differences(outcome(), outcome(RAN_ON)) == []
    assert notes(outcome(), outcome(RAN_ON)) == ["the machine of the old run is unknown"]
    less = outcome({name: value for name, value in RAN_ON.items() if name != "kernel"})
    assert notes(less, outcome(RAN_ON)) == ["unknown for the old run: kernel"]
    assert notes(outcome(RAN_ON), less) == ["unknown for the new run: kernel"]
    old = {"key": "a", "precision": "fp32"}
    assert fingerprint_differences(old, {"key": "b", "precision": "fp32", "data": "d1"}) == []
    assert fingerprint_differences(old, {"key": "b", "precision": "bf16", "data": "d1"}) == ["precision: fp32 -> bf16"]
    assert fingerprint_differences(old, {"key": "b", "precision": "fp32"}) == ["key: a -> b"]
    assert fingerprint_differences(old, {}) == ["fingerprint: known -> none"]
    assert fingerprint_differences({}, {}) == []


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ({}, {"compile": [True, False]}, "config: compile false -> true"),
        ({"width": [64, 32]}, {"width": [128, 32]}, "config: width 64 -> 128"),
        ({"width": [64, 32], "depth": [2, None]}, {}, "config: width 64 -> 32, depth 2 -> none"),
        ({"width": [64, 32]}, {"width": [64, 32]}, "config: c1 -> c2"),
        ({}, None, "config: c1 -> c2"),
    ],
)
def test_configs_that_differ_say_in_which_values(old: dict[str, Any], new: dict[str, Any] | None, text: str) -> None:
    then, now = {**COMPARED, "deviations": old}, {**COMPARED, "key": "b", "config": "c2", "deviations": new}
    assert fingerprint_differences(then, now) == [text]


def test_deviations_that_do_not_weigh_are_reported() -> None:
    assert notes(outcome(), outcome(deviations={"max_steps": [10, 20]})) == ["max_steps 20 -> 10"]


def test_rounds_with_other_versions_of_a_package_are_not_comparable() -> None:
    other = outcome(deviations={"version numpy": ["2.3.0", "==2.4.6"]})
    assert outcome_differences(outcome(), other) == ["version numpy ==2.4.6 -> 2.3.0"]
    assert outcome_differences(other, other) == notes(outcome(), other) == []
    reported = {"version torch": ["2.11.0", "==2.15.0"]}, {"torch": "2.11.0"}
    then, now = outcome({"torch": "2.15.0"}), outcome(reported[1], deviations=reported[0])
    assert outcome_differences(then, now) == ["torch: 2.15.0 -> 2.11.0"], "once: the ranks of both report it"


def stored_by_driver(root: Path, driver: str) -> Path:
    ran_on = {**RAN_ON, "driver": driver}

    def change(one: Outcome) -> Outcome:
        return replace(one, machine=ran_on, started_ms=1000 * int(driver))

    return run_of(root, rounds=[change], fingerprint=COMPARED)


def test_one_cards_stored_figure_is_of_a_like_machine(tmp_path: Path) -> None:
    stored_by_driver(tmp_path / "run1", "550")
    assert find_one_card(tmp_path, "a", {**RAN_ON, "driver": "560"}) is None
    assert find_one_card(tmp_path, "a", {**RAN_ON, "driver": "550"}) is not None
    assert find_one_card(tmp_path, "a") is not None
