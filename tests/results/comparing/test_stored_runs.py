"""Comparable earlier runs are found in their order, and few files are read."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.results.comparing.stored_runs import StoredRuns
from pytest_flagperf.results.figures import noise
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.verdicts import Verdict, VerdictKind
from tests.helpers.results_help import edit_json
from tests.helpers.stored_runs import add_case, faster

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
