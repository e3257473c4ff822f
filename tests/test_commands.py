"""The command line over stored runs: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.commands import COMMANDS, main, redact
from pytest_flagperf.report.markdown import performance_tables
from pytest_flagperf.results import load, store
from pytest_flagperf.results.faults import Failure
from pytest_flagperf.results.metrics import Metric
from pytest_flagperf.results.outcome import Losses, Outcome, Quality, Work
from pytest_flagperf.results.phases import Phase
from pytest_flagperf.results.ranges import Impossible, Range
from pytest_flagperf.results.ranklog import Evaluation, Step, Target
from pytest_flagperf.results.validity import Mark
from pytest_flagperf.results.verdicts import OneCard, Verdict, converges, failed
from tests import trees
from tests.results_help import edit_json, recorded
from tests.stored_runs import add_case, cases_of, faster, finish, run_of, submission

Capture = pytest.CaptureFixture[str]
SAME = {"suite_code": "s1", "driver_code": "d1"}


def flagperf(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def said(capsys: Capture, *arguments: object, code: int = 0) -> str:
    """What a command printed, having ended as it should and complained of nothing."""
    got = flagperf(*arguments)
    out, err = capsys.readouterr()
    assert (got, err) == (code, ""), out + err
    return out


def refused(capsys: Capture, *arguments: object) -> list[str]:
    """The sentences of a command that could not be done; nothing else was printed."""
    assert flagperf(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert all(line.startswith("flagperf: ") for line in err.splitlines())
    return [line.removeprefix("flagperf: ") for line in err.splitlines()]


# -- what all have in common ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself(name: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert "exit codes: 0 done, 1" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "command", [("show",), ("table",), ("redact",), ("bundle",), ("export", "--csv"), ("merge", "--to", "x")], ids=str
)
def test_what_is_no_run_is_a_sentence(command: tuple[str, ...], tmp_path: Path, capsys: Capture) -> None:
    assert refused(capsys, *command, tmp_path / "nothing") == [f"{tmp_path / 'nothing'}: no such directory"]


def test_a_run_of_which_nothing_can_be_read_has_failed_and_says_why(tmp_path: Path, capsys: Capture) -> None:
    case_dir = add_case(tmp_path / "run", "converged_1x1")
    (case_dir / "round1" / "outcome.json").write_text("{", encoding="utf-8")
    out = said(capsys, "show", tmp_path / "run")
    assert "outcome.json: is not JSON" in out
    assert "0 of 1 case passed, 1 failed" in out
    assert any("outcome.json: is not JSON" in line for line in refused(capsys, "merge", tmp_path / "run", "--to", "x"))


def test_it_runs_as_a_module_and_ends_quietly_when_its_reader_does(tmp_path: Path) -> None:
    run_of(tmp_path / "run")
    command = [sys.executable, "-m", "pytest_flagperf", "show", str(tmp_path / "run")]
    whole = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "toy:pytorch:CPU:1:1:1" in whole.stdout
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


# -- list ----------------------------------------------------------------------------------------------------


def test_list_names_suites_vendors_chips_shapes_and_scales(tmp_path: Path, capsys: Capture) -> None:
    trees.tree(tmp_path)
    trees.write_config(tmp_path, name="config_X9x1x1.py")
    out = " ".join(said(capsys, "list", tmp_path).split())
    assert "toy:pytorch top1 reference >= 0.750, small >= 0.900" in out
    assert "acme Acme reference X9 (up to 8 a host), A1x2" in out
    assert "toy:pytorch acme X9 1x1, 1x8" in out


def test_list_of_many_chips_fits_a_terminal(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    trees.tree(tmp_path)
    chips = "".join(f"[chips.C{number}]\ndevices_per_host = 8\n" for number in range(20))
    trees.write_vendor(tmp_path, "many", toml=f'name = "Many"\ndevice = "cpu"\nbackend = "gloo"\n{chips}')
    lines = said(capsys, "list", tmp_path).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.count("(up to 8 a host)") for line in lines) == 21


def test_what_is_in_the_way_of_a_file_is_told_by_its_own_name(tmp_path: Path, capsys: Capture) -> None:
    run, file, folder = run_of(tmp_path / "run"), tmp_path / "file", tmp_path / "folder"
    file.write_text("")
    folder.mkdir()
    assert flagperf("compare", run, run, "--html", folder) == 2
    assert capsys.readouterr().err == f"flagperf: {folder}: is a folder; a file is wanted\n"
    assert refused(capsys, "accept", run, "--baselines", file) == [f"{file}: is a file; a folder is wanted"]


def test_list_tells_all_that_is_wrong_at_once(tmp_path: Path, capsys: Capture) -> None:
    trees.tree(tmp_path)
    trees.write_suite(tmp_path, "other", toml="metric = 3\n")
    trees.write_vendor(tmp_path, "bad", toml="name = 3\n")
    lines = refused(capsys, "list", tmp_path)
    assert any("other" in line for line in lines)
    assert any("bad" in line for line in lines)
    assert refused(capsys, "list", tmp_path / "none") == [f"{tmp_path / 'none'}: no such directory"]
    (tmp_path / "empty").mkdir()
    assert "no suites" in refused(capsys, "list", tmp_path / "empty")[0]


# -- show ----------------------------------------------------------------------------------------------------


def test_show_gives_the_table_the_failures_and_the_warnings_again(tmp_path: Path, capsys: Capture) -> None:
    add_case(tmp_path / "run", "converged_1x1", [lambda one: replace(one, warnings=("rank 1 fell behind",))])
    add_case(tmp_path / "run", "crashed_rank")
    finish(tmp_path / "run", store.RunInfo(unsupported=("toy:pytorch:CPU:2:8:1: has no config",)))
    out = said(capsys, "show", tmp_path / "run", "--width", 80)
    assert "flagperf: 1 of 3 cases passed, 1 failed" in out.splitlines()[-1]
    assert "warning: toy:pytorch:CPU:1:1:1: round 1: rank 1 fell behind" in out
    failures = [line for line in out.splitlines() if line.startswith("failed: ")]
    assert len(failures) == 1
    assert "ModuleNotFoundError" in failures[0]
    assert "not run: toy:pytorch:CPU:2:8:1: has no config" in out
    wide = said(capsys, "show", tmp_path / "run", "--width", 200)
    assert len(wide.splitlines()) < len(out.splitlines())


def test_show_says_what_of_a_killed_run_is_missing(tmp_path: Path, capsys: Capture) -> None:
    add_case(tmp_path / "run", "converged_1x1")
    assert "note: " in said(capsys, "show", tmp_path / "run")


# -- table ---------------------------------------------------------------------------------------------------


def test_the_readme_table_has_the_columns_and_signs_of_the_original(tmp_path: Path, capsys: Capture) -> None:
    runs = submission(tmp_path)
    lines = said(capsys, "table", *runs).splitlines()
    assert lines[0] == "### toy-pytorch, acme X9"
    head = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert head == [
        "configuration", "precision", "fix_hp", "e2e_time", "p_whole", "p_train", "p_core", "top1", "mem", "MFU",
    ]  # fmt: skip
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[4:7]]
    assert [row[0] for row in rows] == ["X9 1 host x 1 (1x1)", "X9 1 host x 8 (1x8)", "X9 2 hosts x 8 (2x8)"]
    assert all(len(row) == len(head) for row in rows)
    assert rows[2][3] == rows[2][7] == "/"
    assert rows[1][7] != "/"
    assert "Not measured" not in lines[-1]


def test_the_readme_table_in_chinese(tmp_path: Path, capsys: Capture) -> None:
    out = said(capsys, "table", *submission(tmp_path), "--lang", "zh")
    for cell in ("X9单机单卡（1x1）", "X9单机8卡（1x8）", "X9两机8卡（2x8）", "配置"):
        assert cell in out


def test_the_table_names_rounds_scale_deviations_and_missing_shapes(tmp_path: Path) -> None:
    run_of(tmp_path / "run", rounds=faster(1.0, 1.2, 1.1))
    out = "\n".join(performance_tables([store.load_run(tmp_path / "run")]))
    assert "train_batch_size=32" in out
    assert "1x1 3" in out
    assert "Not measured: 1x8, 2x8." in out
    assert "small scale" in out


# -- merge ---------------------------------------------------------------------------------------------------


def test_shapes_of_several_runs_become_one_run(tmp_path: Path, capsys: Capture) -> None:
    out = said(capsys, "merge", *submission(tmp_path), "--to", tmp_path / "all")
    assert "3 cases, 3 rounds of 3 runs" in out
    run = store.load_run(tmp_path / "all")
    assert run.problems == ()
    assert [case.case for case in run.cases] == [f"toy:pytorch:X9:{shape}:1" for shape in ("1:1", "1:8", "2:8")]
    assert all(case.verdicts for case in run.cases)
    assert len(load(tmp_path / "all")) == 3
    with (tmp_path / "all" / "results.csv").open(encoding="utf-8", newline="") as stream:
        assert {row["run"] for row in csv.DictReader(stream)} == {"all"}


def test_rounds_of_a_case_are_numbered_anew_and_judged_together(tmp_path: Path, capsys: Capture) -> None:
    for name, factors in (("a", (1.0, 1.1)), ("b", (1.2, 1.3))):
        one_card = add_case(tmp_path / name, "converged_1x1", faster(*factors))
        case_dir = add_case(tmp_path / name, "converged_1x2", faster(*factors))
        store.save_one_card(case_dir, OneCard(1.0, "this run"))
        assert one_card.is_dir()
        finish(tmp_path / name)
    out = said(capsys, "merge", tmp_path / "a", tmp_path / "b", "--to", tmp_path / "all")
    assert "seeds used more than once (42, 43)" in out
    assert "its 4 rounds are judged again together, with no baseline and no earlier runs\n" in out
    one, two = cases_of(tmp_path / "all")
    assert [outcome.round for outcome in one.outcomes] == [1, 2, 3, 4]
    assert len([test for test in two.verdicts if test.startswith("test_converges")]) == 4
    assert two.one_card is not None
    assert two.one_card.where_from == "the merged runs"
    assert two.one_card.p_core == one.median("p_core")
    assert [verdict.name for verdict in next(v for k, v in two.verdicts.items() if "speedup" in k)][-1] == "efficiency"
    assert [[mark.kind for mark in outcome.marks] for outcome in one.outcomes] == [[], [], ["seed"], ["seed"]]
    assert "round3 trained with seed 42, as round1 did" in one.outcomes[2].marks[0].sentence
    valid = [one for one in two.verdicts[f"test_throughput[{two.case}]"] if one.name == "valid"]
    assert ["are bent" in one.sentence for one in valid] == [False, False, True, True]
    merged = json.loads((tmp_path / "all" / "merged.json").read_text(encoding="utf-8"))
    assert merged["rounds"][one.case][2] == {"run": "b", "round": 1}
    assert json.loads((tmp_path / "all" / one.outcomes[3].directory / "plan.json").read_text())["round"] == 4


def with_verdicts(run_dir: Path, test: str, *verdicts: Verdict) -> None:
    """What a run would have judged of its case beside what its rounds say."""
    (case,) = cases_of(run_dir)
    case_dir = run_dir / case.case.replace(":", "_")
    name = f"{test}[{case.case}]"
    store.save_verdicts(case_dir, name, [*case.verdicts.get(name, ()), *verdicts])


def test_what_only_the_runs_could_judge_is_not_lost(tmp_path: Path, capsys: Capture) -> None:
    worse = Verdict("baseline p_core", False, "1", "2", "p_core is 50 % below the baseline's")
    for name in ("a", "b"):
        run_of(tmp_path / name)
    with_verdicts(tmp_path / "a", "test_throughput", worse)
    with_verdicts(tmp_path / "b", "test_of_the_suite", Verdict("own", False, "", "", "the suite's own check failed"))
    out = said(capsys, "merge", tmp_path / "a", tmp_path / "b", "--to", tmp_path / "all")
    assert "earlier runs; what a run's own rounds were compared with stands as it was found" in out
    (case,) = cases_of(tmp_path / "all")
    told = [one.sentence for found in case.verdicts.values() for one in failed(found)]
    assert sorted(told) == ["a: p_core is 50 % below the baseline's", "b: the suite's own check failed"]


@pytest.mark.parametrize(("reasons", "kept"), [(("known", "known"), "known"), (("known", None), None)])
def test_a_failure_stays_expected_where_it_was_in_every_run(
    tmp_path: Path, capsys: Capture, reasons: tuple[str | None, ...], kept: str | None
) -> None:
    for name, reason in zip(("a", "b"), reasons, strict=True):
        run_of(tmp_path / name, "missed_target")
        (case,) = cases_of(tmp_path / name)
        for test, found in case.verdicts.items():
            judged = [one if one.ok else replace(one, expected=reason) for one in found]
            store.save_verdicts(tmp_path / name / case.case.replace(":", "_"), test, judged)
    said(capsys, "merge", tmp_path / "a", tmp_path / "b", "--to", tmp_path / "all")
    (case,) = cases_of(tmp_path / "all")
    bad = [one for found in case.verdicts.values() for one in failed(found)]
    assert bad
    assert {one.expected for one in bad} == {kept}
    assert case.ok is (kept is not None)


def test_a_round_that_failed_for_being_bent_fails_in_the_merged_run_too(tmp_path: Path, capsys: Capture) -> None:
    slow = (Mark("throttled", "its clocks were held back"),)
    run_of(tmp_path / "a", rounds=[lambda outcome: replace(outcome, marks=slow)])
    run_of(tmp_path / "b")
    with_verdicts(tmp_path / "a", "test_throughput", Verdict("valid", False, "throttled", "nothing", "bent"))
    said(capsys, "merge", tmp_path / "a", tmp_path / "b", "--to", tmp_path / "all")
    (case,) = cases_of(tmp_path / "all")
    told = {one.sentence for found in case.verdicts.values() for one in failed(found)}
    assert "round 1: its figures are bent: its clocks were held back" in told


def test_a_case_with_another_number_of_rounds_stays_apart_and_that_is_told(tmp_path: Path, capsys: Capture) -> None:
    run_of(tmp_path / "a")
    run_of(tmp_path / "b", rounds=faster(1.0, 1.1))
    out = said(capsys, "merge", tmp_path / "a", tmp_path / "b", "--to", tmp_path / "all")
    assert "note: toy:pytorch:CPU:1:1:1 and toy:pytorch:CPU:1:1:2 stay apart" in out
    assert "2 cases, 3 rounds" in out


def test_no_link_and_no_device_of_a_host_is_copied(tmp_path: Path, capsys: Capture) -> None:
    run_of(tmp_path / "a")
    (case,) = cases_of(tmp_path / "a")
    (tmp_path / "precious").write_text("precious")
    folder = tmp_path / "a" / case.outcomes[0].directory
    (folder / "stolen").symlink_to(tmp_path / "precious")
    os.mkfifo(folder / "pipe")
    said(capsys, "merge", tmp_path / "a", "--to", tmp_path / "b")
    assert not list((tmp_path / "b").rglob("stolen"))
    assert not list((tmp_path / "b").rglob("pipe"))
    assert list((tmp_path / "b").rglob("outcome.json"))


def test_what_cannot_be_read_is_told_and_not_merged(tmp_path: Path, capsys: Capture) -> None:
    run_of(tmp_path / "a", rounds=faster(1.0, 1.1))
    (case,) = cases_of(tmp_path / "a")
    (tmp_path / "a" / case.outcomes[1].directory / "outcome.json").write_text("{", encoding="utf-8")
    out = said(capsys, "merge", tmp_path / "a", "--to", tmp_path / "all")
    assert "1 case, 1 round of 1 run" in out
    assert "round2/outcome.json: is not JSON" in out


def test_runs_of_one_name_are_told_apart(tmp_path: Path, capsys: Capture) -> None:
    for place in ("here", "there"):
        run_of(tmp_path / place / "run1")
    said(capsys, "merge", tmp_path / "here", tmp_path / "there", "--to", tmp_path / "all")
    assert set(json.loads((tmp_path / "all" / "merged.json").read_text())["runs"]) == {"run1", "run1-2"}


def test_unlike_rounds_are_not_merged_and_nothing_is_left(tmp_path: Path, capsys: Capture) -> None:
    run_of(tmp_path / "a", fingerprint={**SAME, "key": "a"})
    run_of(tmp_path / "b", fingerprint={**SAME, "driver_code": "d2", "key": "b"})
    lines = refused(capsys, "merge", tmp_path / "a", tmp_path / "b", "--to", tmp_path / "all")
    assert lines == ["toy:pytorch:CPU:1:1:1: a and b are unlike and can't be one case's rounds: driver_code: d1 -> d2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_what_is_there_is_not_written_over(tmp_path: Path, capsys: Capture) -> None:
    run_of(tmp_path / "a")
    for command in (("merge", tmp_path / "a", "--to"), ("redact", tmp_path / "a", "--to")):
        assert "is there already" in refused(capsys, *command, tmp_path / "a")[0]


# -- export --------------------------------------------------------------------------------------------------


def test_export_writes_beside_the_run_or_elsewhere(tmp_path: Path, capsys: Capture) -> None:
    import pandas

    for name in ("a", "b"):
        add_case(tmp_path / "runs" / name, "converged_1x1")
    (tmp_path / "runs" / "a" / "results.csv").unlink(missing_ok=True)
    said(capsys, "export", tmp_path / "runs" / "a", "--csv")
    assert (tmp_path / "runs" / "a" / "results.csv").is_file()
    for name in ("a", "b"):
        finish(tmp_path / "runs" / name)
    said(capsys, "export", tmp_path / "runs", "--csv", "--parquet", "--to", tmp_path / "out")
    assert list(pandas.read_parquet(tmp_path / "out" / "results.parquet")["run"]) == ["a", "b"]
    with (tmp_path / "out" / "results.csv").open(encoding="utf-8", newline="") as stream:
        assert [row["run"] for row in csv.DictReader(stream)] == ["a", "b"]
    said(capsys, "export", tmp_path / "runs" / "a", "--parquet", "--long")
    assert "value" in pandas.read_parquet(tmp_path / "runs" / "a" / "results.parquet").columns
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["results.csv", "results.parquet"]


def test_export_says_what_it_needs(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path / "run")
    assert "say which" in refused(capsys, "export", run)[0]
    assert "--long is of --parquet" in refused(capsys, "export", run, "--csv", "--long")[0]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'pytest-flagperf[tables]'" in refused(capsys, "export", run, "--parquet")[0]


# -- redact --------------------------------------------------------------------------------------------------


def numbers_in(directory: Path) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(directory.rglob("*")) if path.is_file())


def test_a_redacted_copy_holds_no_speed_and_no_time(tmp_path: Path, capsys: Capture) -> None:
    add_case(tmp_path / "run", "converged_1x1")
    case_dir = add_case(tmp_path / "run", "converged_1x2")
    store.save_one_card(case_dir, OneCard(1234.5, "this run"))
    (tmp_path / "run" / "report.html").write_text("p_core 1234.5")
    finish(tmp_path / "run")
    outcomes = [case.outcomes[0] for case in cases_of(tmp_path / "run")]
    out = said(capsys, "redact", tmp_path / "run")
    assert "2 cases of cpu without its numbers" in out
    assert "p_core (2)" in out
    copy = tmp_path / "run-redacted"
    text, whole = numbers_in(copy), numbers_in(tmp_path / "run")
    kept = {"final_loss", "samples_to_target", "top1"}
    for outcome in outcomes:
        secret = [metric.value for metric in outcome.metrics if metric.name not in kept and metric.value]
        secret += [value for step in outcome.steps for value in (step.time, step.throughput)]
        secret += [evaluation.time for evaluation in outcome.evaluations if evaluation.time]
        long = {str(value) for value in secret if len(str(value)) > 5}
        assert len([value for value in long if value in whole]) > 5
        assert [value for value in long if value in text] == []
    assert "1234.5" not in text
    assert not list(copy.rglob("*.log"))
    assert not (copy / "report.html").exists()
    again = cases_of(copy)
    assert [case.case for case in again] == [outcome.case for outcome in outcomes]
    assert [case.converged for case in again] == [1, 1]
    assert all(case.ok for case in again)
    left = again[0].outcomes[0]
    assert left.value("top1") == outcomes[0].value("top1")
    assert (left.phases, left.marks, left.machine) == ((), (), {})
    assert all(math.isnan(evaluation.seconds) for evaluation in left.evaluations)
    assert json.loads((copy / "redacted.json").read_text())["vendor"] == "cpu"
    assert "| / | / | / | / |" in said(capsys, "table", copy)
    said(capsys, "show", copy)
    assert load(copy)["ok"].all()


CLEANED = {"metrics", "failures", "steps", "evaluations", "untrained", "quality", "fingerprint", "environment"}
LEFT_OUT = {"impossible", "started_ms", "ended_ms", "logs", "warnings", "marks", "machine", "phases", "compared"}
PARTS = {
    Step: "step samples time loss throughput learning_rate",
    Evaluation: "step samples time metrics seconds",
    Metric: "name value unit direction how samples warmup",
    Failure: "kind host rank sentence last_lines",
    Target: "name direction unit value",
    Work: "samples steps epochs measured_steps measured_samples warmup_steps batch_per_card accumulation"
    " samples_per_item",
    Losses: "logged bad first_bad_step first_bad final",
    Quality: "evaluations bad best last reached program_converged program_final",
    Verdict: "name ok got wanted sentence expected warning",
}


def test_of_every_field_it_was_decided_whether_a_redacted_copy_has_it() -> None:
    """A new field fails here: what of it may be told? Nothing is, until it is on the list."""
    assert {each.name for each in fields(Outcome)} == {*redact.KEPT, *CLEANED, *LEFT_OUT}
    for part, known in PARTS.items():
        assert [each.name for each in fields(part)] == known.split(), part


def test_what_is_not_on_the_list_is_not_in_a_redacted_copy(tmp_path: Path, capsys: Capture) -> None:
    told: dict[str, Any] = {"started_ms": 1, "ended_ms": 1, "logs": ("l",), "warnings": ("w",)}
    told |= {"impossible": (Impossible(0, "EVALUATE", "top1", 1, 2.5, 50, Range(0, 1)),)}
    told |= {"marks": (Mark("throttled", "slow"),), "machine": {"chip": "X9"}, "phases": (Phase("train", 1.0, 2.0),)}
    told |= {"compared": 5}
    assert told.keys() == LEFT_OUT
    run_of(tmp_path / "run", rounds=[lambda outcome: replace(outcome, **told)])
    said(capsys, "redact", tmp_path / "run")
    (before,), (after,) = cases_of(tmp_path / "run"), cases_of(tmp_path / "run-redacted")
    for each in fields(Outcome):
        old, new = (getattr(case.outcomes[0], each.name) for case in (before, after))
        assert (new == old) is (each.name not in LEFT_OUT) or each.name in CLEANED, each.name


def test_a_redacted_copy_has_no_figures_of_a_contradiction(tmp_path: Path, capsys: Capture) -> None:
    failure = Failure("contradiction", "h1", 0, "round 1: rank 0 on h1: `p_core` is 9,999 images/s")
    run_of(tmp_path / "run", rounds=[lambda outcome: replace(outcome, failures=(failure,))])
    said(capsys, "redact", tmp_path / "run")
    (copied,) = cases_of(tmp_path / "run-redacted")
    assert [one.sentence for one in copied.outcomes[0].failures] == [redact.GONE]
    assert "9,999" not in "".join(path.read_text() for path in (tmp_path / "run-redacted").rglob("*.json"))


def test_other_vendors_are_left_as_they_were(tmp_path: Path, capsys: Capture) -> None:
    add_case(tmp_path / "run", "converged_1x1")
    add_case(tmp_path / "run", "converged_1x1", hardware="X9", vendor="acme")
    finish(tmp_path / "run")
    assert "say whose numbers" in refused(capsys, "redact", tmp_path / "run")[0]
    assert "did you mean acme" in refused(capsys, "redact", tmp_path / "run", "--vendor=acm")[0]
    said(capsys, "redact", tmp_path / "run", "--vendor=acme", "--to", tmp_path / "copy")
    mine, others = cases_of(tmp_path / "copy")
    assert (mine.outcomes[0].vendor, others.outcomes[0].vendor) == ("cpu", "acme")
    assert mine == cases_of(tmp_path / "run")[0]
    assert others.median("p_core") is None


# -- bundle --------------------------------------------------------------------------------------------------


def test_a_complete_submission_is_one_archive_with_checksums(tmp_path: Path, capsys: Capture) -> None:
    archive = tmp_path / "mine.tar.gz"
    out = said(capsys, "bundle", *submission(tmp_path / "runs"), "--to", archive)
    assert "complete" in out
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "out", filter="data")
    top = tmp_path / "out" / "mine"
    lines = (top / "SHA256SUMS").read_text().splitlines()
    for line in lines:
        digest, name = line.split("  ")
        assert hashlib.sha256((top / name).read_bytes()).hexdigest() == digest, name
    files = {path.relative_to(top).as_posix() for path in top.rglob("*") if path.is_file()}
    assert files == {line.split("  ")[1] for line in lines} | {"SHA256SUMS"}
    summary = json.loads((top / "submission.json").read_text())
    assert (summary["complete"], len(summary["cases"])) == (True, 3)
    assert summary["cases"][1]["fingerprint"]["suite_code"] == "s1"
    assert any(name.endswith("rank0.out.log") for name in files)
    assert any(name.endswith("round1/plan.json") for name in files)
    assert "X9" in (top / "performance.zh.md").read_text(encoding="utf-8")
    assert "is there already" in refused(capsys, "bundle", *submission(tmp_path / "again"), "--to", archive)[0]
    said(capsys, "bundle", tmp_path / "runs", "--to", tmp_path / "other" / "mine.tar.gz")
    assert (tmp_path / "other" / "mine.tar.gz").read_bytes() == archive.read_bytes()


def test_all_that_is_amiss_is_told_at_once(tmp_path: Path, capsys: Capture) -> None:
    one, eight, sixteen = submission(tmp_path / "runs")
    shutil.rmtree(sixteen)
    directory = one / "toy_pytorch_X9_1_1_1" / "round1"
    outcome = store.load_outcome(directory)
    fingerprint = {**outcome.fingerprint, "suite_code": "s2"}
    store.save_outcome(directory, replace(outcome, scale="small", synthetic=True, fingerprint=fingerprint))
    (directory / outcome.logs[0]).unlink()
    edit_json(directory / "plan.json", config={})
    directory = eight / "toy_pytorch_X9_1_8_1" / "round1"
    outcome = store.load_outcome(directory)
    store.save_outcome(directory, replace(outcome, quality=replace(outcome.quality, reached=None)))
    archive = tmp_path / "mine.tar.gz"
    out = said(capsys, "bundle", one, eight, "--to", archive, code=1)
    for text in (
        "2x8 is missing",
        "1x1: was run at the small scale",
        "1x1: was run on synthetic data",
        "1x1: round 1: 1 rank of 1 left no log",
        "1x1: round 1: plan.json holds no config",
        "1x8: no round reached the target",
        "suite_code is not the same in all shapes: s2 in 1x1, s1 in 1x8",
    ):
        assert f"amiss: toy:pytorch:X9: {text}" in out
    assert not archive.exists()
    assert "incomplete" in said(capsys, "bundle", one, eight, "--to", archive, "--incomplete", code=1)
    with tarfile.open(archive) as packed:
        summary = packed.extractfile("mine/submission.json")
        assert summary is not None
        assert json.loads(summary.read())["complete"] is False


def test_parity_is_no_convergence_of_a_submission(tmp_path: Path, capsys: Capture) -> None:
    runs = submission(tmp_path / "runs")
    directory = runs[1] / "toy_pytorch_X9_1_8_1" / "round1"
    old, parity = store.load_outcome(directory), recorded("parity")
    work = replace(parity.work, batch_per_card=(parity.work.batch_per_card or 0) // 8)
    curve = replace(parity, case=old.case, scale=old.scale, nproc=8, logs=old.logs, work=work)
    assert not failed(converges(curve))
    store.save_outcome(directory, replace(curve, fingerprint=old.fingerprint, hardware="X9", vendor="acme"))
    out = said(capsys, "bundle", *runs, "--to", tmp_path / "mine.tar.gz", code=1)
    assert "1x8: no round reached the target: parity_samples has them judged" in out
    archive = tmp_path / "all.tar.gz"
    said(capsys, "bundle", *runs, "--to", archive, "--incomplete", code=1)
    with tarfile.open(archive) as packed:
        summary = json.load(packed.extractfile("all/submission.json"))  # type: ignore[arg-type]
    assert [case["parity_samples"] for case in summary["cases"]] == [None, curve.parity_samples, None]


def test_only_what_can_be_merged_is_to_be_merged(tmp_path: Path, capsys: Capture) -> None:
    for name, factors in (("a", (1.0,)), ("b", (1.0,)), ("c", (1.0, 1.1))):
        run_of(tmp_path / name, rounds=faster(*factors))
    for others, advice in ((("a", "b"), "give one of them, or merge them\n"), (("a", "c"), "give one of them\n")):
        runs = [tmp_path / name for name in others]
        assert advice in said(capsys, "bundle", *runs, "--to", tmp_path / "x.tar.gz", code=1)


def test_other_shapes_and_the_small_scale_when_asked(tmp_path: Path, capsys: Capture) -> None:
    add_case(tmp_path / "run", "converged_1x1")
    add_case(tmp_path / "run", "converged_1x2")
    finish(tmp_path / "run")
    asked = ("--shapes=1x1,1x2", "--scale=small", "--to", tmp_path / "s.tar.gz")
    said(capsys, "bundle", tmp_path / "run", *asked)
    assert "shape 'x'" in refused(capsys, "bundle", tmp_path / "run", "--shapes=x")[0]


def test_a_round_that_failed_says_why_there_is_no_archive(tmp_path: Path, capsys: Capture) -> None:
    run = run_of(tmp_path / "run", "crashed_rank")
    out = said(capsys, "bundle", run, "--shapes=1x2", "--scale=small", "--to", tmp_path / "s.tar.gz", code=1)
    assert "1x2: no round ended well: round 1: rank 1" in out
