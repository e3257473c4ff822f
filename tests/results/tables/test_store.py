"""What is stored can be read again, also where a run was killed midway."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_flagperf.case import variant_of
from pytest_flagperf.kinds.training import verdicts as training_verdicts
from pytest_flagperf.printable import printable
from pytest_flagperf.results import verdicts
from pytest_flagperf.results.comparing.one_card import find_one_card
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.measured.validity import ValidityWarning
from pytest_flagperf.results.tables import columns, published, store
from pytest_flagperf.results.tables.store import RunInfo
from pytest_flagperf.results.verdicts import OneCard
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf.stored import files
from tests.helpers.results_help import edit_json, recorded, replay_dir, with_metric

INFO = RunInfo(("pytest", "suites"), {"pytest-flagperf": "0.1.0"}, 1, 2, 0, ("toy:pytorch:CPU:1:1:1",), ("nothing",))


def rounds(run_dir: Path, name: str, count: int = 1) -> Path:
    """A case's directory in a run, with this replay as its rounds."""
    case_dir = run_dir / measure(replay_dir(name)).case.replace(":", "_")
    for number in range(1, count + 1):
        shutil.copytree(replay_dir(name), case_dir / f"round{number}")
        edit_json(case_dir / f"round{number}" / "plan.json", round=number)
    return case_dir


def stored(run_dir: Path, name: str) -> Outcome:
    case_dir = rounds(run_dir, name)
    outcome = measure(case_dir / "round1")
    store.save_outcome(case_dir / "round1", outcome)
    return outcome


def case_of(outcome: Outcome) -> CaseResult:
    judged = {"test_converges": tuple(training_verdicts.converges(outcome))}
    return CaseResult(outcome.case, (outcome,), judged, OneCard(1000.0, "this run", "images/s"))


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    outcome = stored(tmp_path, "converged_1x2")
    case = case_of(outcome)
    store.save_verdicts(tmp_path / case.case.replace(":", "_"), "test_converges", case.verdicts["test_converges"])
    assert case.one_card is not None
    store.save_one_card(tmp_path / case.case.replace(":", "_"), case.one_card)
    store.write_run(tmp_path, INFO, [case])
    run = store.load_run(tmp_path)
    assert run.problems == ()
    assert run.info == INFO
    assert run.cases == (case,)


def test_results_json_has_figures_and_verdicts_and_no_curves(tmp_path: Path) -> None:
    outcome = recorded("as_the_reference")
    assert outcome.reference
    store.write_run(tmp_path, INFO, [CaseResult(outcome.case, (outcome,) * 3)])
    body = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert body["schema"] == 1
    case = body["cases"][0]
    assert case["metrics"]["p_core"]["unit"] == "images/s"
    assert case["converged"] == 3
    assert case["ok"] is False, "no verdicts"
    assert not {"steps", "evaluations", "reference"} & case["outcomes"][0].keys()


def test_results_csv_has_one_row_per_round_and_the_documented_columns(tmp_path: Path) -> None:
    outcomes = (recorded("converged_1x1"), replace(recorded("crashed_rank"), case="toy:pytorch:CPU:1:1:1"))
    store.write_run(tmp_path, INFO, [CaseResult("toy:pytorch:CPU:1:1:1", outcomes)])
    with (tmp_path / "results.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2
    assert tuple(rows[0]) == columns.COLUMNS
    assert len(set(columns.COLUMNS)) == len(columns.COLUMNS)
    good, bad = rows
    assert (good["ok"], good["converged"], good["metric"], good["failure"]) == ("true", "true", "top1", "")
    assert float(good["e2e_time_s"]) > 5
    assert float(good["p_core"]) > 1000
    assert good["steps"] == "200"
    assert (bad["ok"], bad["converged"], bad["p_core"]) == ("false", "false", "")
    assert "ModuleNotFoundError" in bad["failure"]


def test_convergence_and_the_speed_up_are_there_only_where_they_were_asked_for() -> None:
    outcome = recorded("throughput_only")
    assert CaseResult(outcome.case, (outcome,)).converged is None
    assert CaseResult(outcome.case, (recorded("missed_target"), recorded("converged_1x1"))).converged == 1
    outcome = recorded("converged_1x2")
    rounds_ = tuple(with_metric(outcome, "p_core", value) for value in (1500.0, 1800.0, 900.0))
    bad = recorded("killed_rank")
    assert CaseResult("c", (*rounds_, bad), {}, OneCard(1000.0, "x")).speedup == 1.5
    for none in (None, OneCard(None, "x"), OneCard(0.0, "x"), OneCard(float("nan"), "x")):
        assert CaseResult("c", rounds_, {}, none).speedup is None
    assert CaseResult("c", (bad,), {}, OneCard(1000.0, "x")).speedup is None


def test_of_a_run_killed_midway_is_read_what_is_there(tmp_path: Path) -> None:
    case_dir = rounds(tmp_path, "converged_1x1", 2)
    store.save_outcome(case_dir / "round1", measure(case_dir / "round1"))
    (case_dir / "round2" / "round.json").unlink()
    run = store.load_run(tmp_path)
    assert run.info is None
    assert [outcome.ok for outcome in run.cases[0].outcomes] == [True, False]
    assert len(run.problems) == 1
    (case_dir / "round1" / "outcome.json").write_text('{"sche', encoding="utf-8")
    broken = store.load_run(tmp_path)
    first = broken.cases[0].outcomes[0]
    assert (first.round, first.state, len(broken.cases[0].outcomes)) == (1, "unreadable", 2)
    assert any("outcome.json: invalid JSON" in problem for problem in broken.problems)


def test_verdict_files_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    path = store.save_verdicts(tmp_path, "test_converges[a/b]", training_verdicts.converges(recorded("hang")))
    assert path.parent == tmp_path / "verdicts"
    assert store.load_verdicts(tmp_path)["test_converges[a/b]"] == tuple(training_verdicts.converges(recorded("hang")))
    edit_json(path, verdicts=[{"name": "x"}])
    store.save_verdicts(tmp_path, "test_throughput[a/b]", training_verdicts.converges(recorded("hang")))
    found = store.load_verdicts(tmp_path)
    (failed,) = found[path.stem]
    assert not failed.ok
    assert failed.sentence == f"{path}: verdicts: ok is missing"
    assert found["test_throughput[a/b]"] == tuple(training_verdicts.converges(recorded("hang")))


def test_a_case_that_was_interrupted_is_not_ok(tmp_path: Path) -> None:
    good, cut = recorded("converged_1x1"), replace(recorded("interrupted"), round=2)
    judged = {"test_converges": tuple(training_verdicts.converges(good))}
    expected = {"test_converges": (replace(judged["test_converges"][0], ok=False, expected_failure="known"),)}
    assert CaseResult(good.case, (good,), judged).ok
    assert CaseResult(good.case, (good,), expected).ok
    for found in (judged, expected):
        assert not CaseResult(good.case, (good, cut), found).ok, "the second round was not judged"
    two = CaseResult("toy:pytorch:CPU:1:1:3", (good, replace(good, round=2)), judged)
    for status, ok in ((0, True), (2, False)):
        store.write_run(tmp_path, replace(INFO, exit_status=status), [two])
        (case,) = json.loads((tmp_path / "results.json").read_text())["cases"]
        assert (case["rounds"], case["finished"], case["ok"]) == (2, 2, ok)


def test_each_variant_of_a_case_has_a_published_result_of_its_own(tmp_path: Path) -> None:
    for number, variants in enumerate([("", ":seed-1", ":seed-2"), ("", ":seed-1")]):
        names = [f"toy:pytorch:CPU:1:1:1{variant}" for variant in variants]
        outcomes = [
            replace(recorded("converged_1x1"), case=name, started_ms=number, unverified_chip="") for name in names
        ]
        folder = tmp_path / f"item{number}"
        folder.mkdir()
        store.write_run(folder, INFO, [CaseResult(one.case, (one,)) for one in outcomes])
    newest = {variant_of(one.first.case): one.file.parent.name for one in published.load(tmp_path)}
    assert newest == {"": "item1", "seed-1": "item1", "seed-2": "item0"}


def test_the_newest_good_round_of_one_card_is_found(tmp_path: Path) -> None:
    for run, p_core in (("run20260101000000", 1.0), ("run20260101000000-2", 2.0), ("run20260101000000-10", 3.0)):
        outcome = stored(tmp_path / run, "converged_1x1")
        store.save_outcome(tmp_path / run / outcome.directory, with_metric(outcome, "p_core", p_core))
    found = find_one_card(tmp_path, "key-1")
    assert found is not None
    assert (found.p_core, found.unit) == (3.0, "images/s")
    assert "run20260101000000-10/toy_pytorch_CPU_1_1_1/round1" in found.where_from


@pytest.mark.parametrize("name", ["crashed_rank", "converged_1x2", "p_core_missing"])
def test_no_other_round_stands_for_one_card(tmp_path: Path, name: str) -> None:
    stored(tmp_path / "run20260101000000", name)
    assert find_one_card(tmp_path, "key-1") is None


def test_of_one_card_neither_slowed_rounds_nor_other_keys_are_found(tmp_path: Path) -> None:
    outcome = stored(tmp_path / "run20260101000000", "converged_1x1")
    assert find_one_card(tmp_path, "key-1") is not None
    assert find_one_card(tmp_path, "other") is None
    assert find_one_card(tmp_path, None) is None
    assert find_one_card(tmp_path / "missing", "key-1") is None
    broken = tmp_path / "run20260202000000" / outcome.directory
    broken.mkdir(parents=True)
    (broken / "outcome.json").write_text('{"schema": 99}', encoding="utf-8")
    assert find_one_card(tmp_path, "key-1") is not None
    distorted = replace(outcome, validity_warnings=(ValidityWarning("throttled", "its clocks were held back"),))
    store.save_outcome(tmp_path / "run20260101000000" / outcome.directory, distorted)
    assert find_one_card(tmp_path, "key-1") is None


def test_new_columns_of_the_csv_stand_at_its_end() -> None:
    first = columns.COLUMNS.index("e2e_time_s")
    old = columns.COLUMNS[: first + len(columns.FIGURES) + 5]
    assert old[-5:] == ("device", "framework_version", "started_ms", "ended_ms", "fingerprint")
    assert columns.COLUMNS[len(old) :][:2] == ("straggler_spread", "device_power_W")
    assert len(set(columns.COLUMNS)) == len(columns.COLUMNS)
    known = {name for name, _ in (*columns.FIGURES, *columns.MEANWHILE)}
    assert {metric.name for metric in recorded("converged_1x2").metrics} - known == {"top1"}


def test_the_runs_file_says_what_the_rounds_say_together(tmp_path: Path) -> None:
    outcome = recorded("converged_1x1")
    cores = (1000.0, 1010.0, 990.0, 1005.0, 500.0, 995.0)
    many = [replace(with_metric(outcome, "p_core", value), round=number) for number, value in enumerate(cores, 1)]
    lost = replace(with_metric(outcome, "p_core", 1.0), round=7, state="failed")
    store.write_run(tmp_path, INFO, [CaseResult(outcome.case, (*many, lost))])
    found = files.read_printable(tmp_path / "results.json")["cases"][0]["metrics"]["p_core"]
    assert (found["count"], found["lowest"], found["median"], found["highest"]) == (6, 500.0, 997.5, 1010.0)
    assert (found["outliers"], found["rounds"], found["few"]) == ([5], [1, 2, 3, 4, 5, 6], None)
    assert found["olympic"] == pytest.approx(997.5)
    assert found["interval"][0] < found["mean"] < found["interval"][1]
    store.write_run(tmp_path, INFO, [CaseResult(outcome.case, (outcome,))])
    alone = files.read_printable(tmp_path / "results.json")["cases"][0]["metrics"]["p_core"]
    assert (alone["interval"], alone["olympic"], alone["variation"]) == (None, None, None)
    assert "repeat the case at least 3 times" in alone["few"]


def test_the_short_round_of_one_card_is_found_by_a_later_run(tmp_path: Path) -> None:
    directory = tmp_path / "run20260101000000" / "toy_pytorch_CPU_1_2_1" / "one_card"
    store.save_outcome(directory, recorded("converged_1x1"))
    found = find_one_card(tmp_path, "key-1")
    assert found is not None
    assert found.where_from == "stored in run20260101000000/toy_pytorch_CPU_1_2_1/one_card"


def test_a_round_judged_by_parity_did_not_converge_and_was_not_asked_to() -> None:
    outcome = replace(recorded("converged_1x1"), parity_samples=1000)
    assert not verdicts.has_converged(outcome)
    assert CaseResult(outcome.case, (outcome,)).converged is None
    assert columns.row("run1", outcome)["converged"] is None


@pytest.mark.parametrize("text", ["\x1b[31mred", "::error ::x", "##[error]x", "caf\xe9\u202e"])
def test_texts_of_a_stored_file_are_printable(text: str, tmp_path: Path) -> None:
    for ascii_only in (True, False):
        (tmp_path / "a.json").write_text(json.dumps({"name": [text]}, ensure_ascii=ascii_only), "utf-8")
        assert files.read_printable(tmp_path / "a.json") == {"name": [printable(text)]}
        assert printable(text) != text
    (tmp_path / "a.json").write_text('{"name": ["plain"]}', "utf-8")
    assert files.read_printable(tmp_path / "a.json") == {"name": ["plain"]}
