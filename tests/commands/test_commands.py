"""The command line over stored runs: what it prints, what it writes, and its exit codes."""

import csv
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.commands import COMMANDS, main
from pytest_flagperf.report.export.markdown import performance_tables
from pytest_flagperf.results.tables import store
from tests.helpers import trees
from tests.helpers.stored_runs import add_case, faster, finish, run_of, submission
from tests.replays import make

Capture = pytest.CaptureFixture[str]
SAME = {"suite_code": "s1", "driver_code": "d1"}


def flagperf(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def output_of(capsys: Capture, *arguments: object, code: int = 0) -> str:
    """Run a command; return its output. It must exit with this code and print no error."""
    got = flagperf(*arguments)
    out, err = capsys.readouterr()
    assert (got, err) == (code, ""), out + err
    return out


def errors_of(capsys: Capture, *arguments: object) -> list[str]:
    """Run a command that must fail and print nothing to stdout; return the lines that it prints to stderr."""
    assert flagperf(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert all(line.startswith("flagperf: ") for line in err.splitlines())
    return [line.removeprefix("flagperf: ") for line in err.splitlines()]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself(name: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert "exit codes: 0 success; 1" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", [("show",), ("bundle",), ("export", "--format=csv")], ids=str)
def test_a_path_without_a_run_is_an_error(command: tuple[str, ...], tmp_path: Path, capsys: Capture) -> None:
    assert errors_of(capsys, *command, tmp_path / "nothing") == [f"{tmp_path / 'nothing'}: no such directory"]


def test_what_a_killed_run_lacks_is_noted_and_unreadable_files_are_a_failure(tmp_path: Path, capsys: Capture) -> None:
    case_dir = add_case(tmp_path / "run", "converged_1x1")
    assert "note: " in output_of(capsys, "show", tmp_path / "run")
    (case_dir / "round1" / "outcome.json").write_text("{", encoding="utf-8")
    out = output_of(capsys, "show", tmp_path / "run")
    assert "outcome.json: invalid JSON" in out
    assert "0 of 1 case passed, 1 failed" in out


def test_it_runs_as_a_module_and_exits_silently_when_its_reader_closes_the_pipe(tmp_path: Path) -> None:
    run_of(tmp_path / "run")
    command = [sys.executable, "-m", "pytest_flagperf", "show", str(tmp_path / "run")]
    whole = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "toy 1x1" in whole.stdout
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_list_names_suites_vendors_chips_shapes_and_scales(tmp_path: Path, capsys: Capture) -> None:
    trees.tree(tmp_path)
    trees.write_config(tmp_path, name="config_X9x1x1.py")
    out = " ".join(output_of(capsys, "list", tmp_path).split())
    assert "toy:pytorch top1 reference >= 0.750, small >= 0.900" in out
    assert "acme Acme reference X9 (up to 8 per host), A1x2" in out
    assert "toy:pytorch acme X9 1x1, 1x8" in out


CPU = '[framework.pytorch]\ndevice = "cpu"\nbackend = "gloo"\n'


def test_list_of_many_chips_fits_a_terminal(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    trees.tree(tmp_path)
    chips = "".join(f"[chips.C{number}]\ndevices_per_host = 8\n" for number in range(20))
    trees.write_vendor(tmp_path, "many", toml=f'name = "Many"\n{CPU}{chips}')
    lines = output_of(capsys, "list", tmp_path).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.count("(up to 8 per host)") for line in lines) == 21


def test_a_path_that_cannot_be_written_is_named_in_the_error(tmp_path: Path, capsys: Capture) -> None:
    run, file, folder = run_of(tmp_path / "run"), tmp_path / "file", tmp_path / "folder"
    file.write_text("")
    folder.mkdir()
    assert flagperf("compare", run, run, "--html", folder) == 2
    assert capsys.readouterr().err == f"flagperf: {folder}: expected a file, got a folder\n"
    assert errors_of(capsys, "accept", run, "--baselines", file) == [f"{file}: expected a folder, got a file"]


def test_list_reports_all_problems_at_once(tmp_path: Path, capsys: Capture) -> None:
    trees.tree(tmp_path)
    trees.write_suite(tmp_path, "other", toml="metric = 3\n")
    trees.write_vendor(tmp_path, "bad", toml="name = 3\n")
    lines = errors_of(capsys, "list", tmp_path)
    assert any("other" in line for line in lines)
    assert any("bad" in line for line in lines)
    assert errors_of(capsys, "list", tmp_path / "none") == [f"{tmp_path / 'none'}: no such directory"]
    (tmp_path / "empty").mkdir()
    assert "no suites" in errors_of(capsys, "list", tmp_path / "empty")[0]


def test_show_prints_the_table_the_failures_and_the_warnings(tmp_path: Path, capsys: Capture) -> None:
    add_case(tmp_path / "run", "converged_1x1", [lambda one: replace(one, warnings=("rank 1 fell behind",))])
    add_case(tmp_path / "run", "crashed_rank")
    finish(tmp_path / "run", store.RunInfo(not_run=("toy:pytorch:CPU:2:8:1: has no config",)))
    out = output_of(capsys, "show", tmp_path / "run", "--width", 80)
    assert "flagperf: 1 of 3 cases passed, 1 failed" in out.splitlines()[-1]
    assert "warning: toy:pytorch:CPU:1:1:1: round 1: rank 1 fell behind" in out
    failures = [line for line in out.splitlines() if line.startswith("failed: ")]
    assert len(failures) == 1
    assert "ModuleNotFoundError" in failures[0]
    assert "not run: toy:pytorch:CPU:2:8:1: has no config" in out
    assert "p_whole" not in out
    assert "p_whole" in output_of(capsys, "show", tmp_path / "run", "--width", 200)


def test_the_readme_table_has_the_columns_and_signs_of_flagperf(tmp_path: Path, capsys: Capture) -> None:
    runs = submission(tmp_path)
    written = output_of(capsys, "export", *runs, "--format=markdown", "--to", tmp_path / "to").split()
    assert written == [f"{tmp_path}/to/performance.md"]
    lines = (tmp_path / "to" / "performance.md").read_text(encoding="utf-8").splitlines()
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


def test_the_table_names_rounds_scale_deviations_and_missing_shapes(tmp_path: Path) -> None:
    run_of(tmp_path / "run", rounds=faster(1.0, 1.2, 1.1))
    out = performance_tables([store.load_run(tmp_path / "run")])
    assert "train_batch_size=32" in out
    assert "3 for 1x1" in out
    assert "Not measured: 1x8, 2x8." in out
    assert "small scale" in out


def test_export_writes_into_the_run_or_another_folder(tmp_path: Path, capsys: Capture) -> None:
    import pandas

    for name in ("a", "b"):
        add_case(tmp_path / "runs" / name, "converged_1x1")
    (tmp_path / "runs" / "a" / "results.csv").unlink(missing_ok=True)
    output_of(capsys, "export", tmp_path / "runs" / "a", "--format=csv")
    assert (tmp_path / "runs" / "a" / "results.csv").is_file()
    for name in ("a", "b"):
        finish(tmp_path / "runs" / name)
    output_of(capsys, "export", tmp_path / "runs", "--format=csv,parquet", "--to", tmp_path / "out")
    assert list(pandas.read_parquet(tmp_path / "out" / "results.parquet")["run"]) == ["a", "b"]
    with (tmp_path / "out" / "results.csv").open(encoding="utf-8", newline="") as stream:
        assert [row["run"] for row in csv.DictReader(stream)] == ["a", "b"]
    output_of(capsys, "export", tmp_path / "runs" / "a", "--format=parquet", "--long")
    assert "value" in pandas.read_parquet(tmp_path / "runs" / "a" / "results.parquet").columns
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["results.csv", "results.parquet"]


def test_export_names_missing_options(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path / "run")
    assert "no format chosen" in errors_of(capsys, "export", run)[0]
    assert "--long requires --format=parquet" in errors_of(capsys, "export", run, "--format=csv", "--long")[0]
    monkeypatch.setattr("pytest_flagperf.packages.find_spec", lambda name: None)
    assert "pip install pandas pyarrow" in errors_of(capsys, "export", run, "--format=parquet")[0]
    with pytest.raises(SystemExit):
        main(["export", str(run), "--csv"])
    assert "--csv was removed; pass --format=csv" in capsys.readouterr().err


def test_a_complete_submission_is_one_archive_with_checksums(tmp_path: Path, capsys: Capture) -> None:
    archive = tmp_path / "mine.tar.gz"
    out = output_of(capsys, "bundle", *submission(tmp_path / "runs"), "--to", archive)
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
    assert "X9" in (top / "performance.md").read_text(encoding="utf-8")
    assert "already exists" in errors_of(capsys, "bundle", *submission(tmp_path / "again"), "--to", archive)[0]
    output_of(capsys, "bundle", tmp_path / "runs", "--to", tmp_path / "other" / "mine.tar.gz")
    assert (tmp_path / "other" / "mine.tar.gz").read_bytes() == archive.read_bytes()


def test_bundle_reports_all_problems_at_once(tmp_path: Path, capsys: Capture) -> None:
    changed = {"suite_code": "s2", "driver_code": "d1", "precision": "fp32", "key": "key-1"}
    first = {"scale": "small", "synthetic": True, "plan_fields": {"fingerprint": changed, "config": {}, "values": {}}}
    one, eight, sixteen = submission(tmp_path / "runs", {"1x1": first, "1x8": {"last": 0.7}})
    shutil.rmtree(sixteen)
    next(one.glob("*/round1/h0_noderank0/rank0.out.log")).unlink()
    archive = tmp_path / "mine.tar.gz"
    out = output_of(capsys, "bundle", one, eight, "--to", archive, code=1)
    for text in (
        "2x8 is missing",
        "1x1: got the small scale; expected reference",
        "1x1: got synthetic data",
        "1x1: round 1: no log of 1 of 1 rank",
        "1x1: round 1: plan.json contains no config",
        "1x8: no round reached the target",
        "suite_code differs between the shapes: s2 in 1x1, s1 in 1x8",
    ):
        assert f"problem: toy:pytorch:X9: {text}" in out
    assert not archive.exists()
    assert "incomplete" in output_of(capsys, "bundle", one, eight, "--to", archive, "--incomplete", code=1)
    with tarfile.open(archive) as packed:
        summary = packed.extractfile("mine/submission.json")
        assert summary is not None
        assert json.loads(summary.read())["complete"] is False


def test_parity_does_not_count_as_convergence(tmp_path: Path, capsys: Capture) -> None:
    half = make.parity("parity", lambda step: make.usual_loss(step) * 1.002)
    names = ("steps", "loss_at", "converged", "reason", "plan_fields")
    run, *_ = submission(tmp_path / "runs", {"1x1": {name: getattr(half, name) for name in names}})
    (case,) = store.load_run(run).cases
    assert case.ok
    only = ("--shapes=1x1", "--to", tmp_path / "all.tar.gz")
    out = output_of(capsys, "bundle", run, *only, code=1)
    assert "1x1: no round reached the target: parity_samples is set" in out
    output_of(capsys, "bundle", run, *only, "--incomplete", code=1)
    with tarfile.open(tmp_path / "all.tar.gz") as packed:
        summary = json.load(packed.extractfile("all/submission.json"))  # type: ignore[arg-type]
    assert [case["parity_samples"] for case in summary["cases"]] == [case.outcomes[0].parity_samples]


def test_two_runs_of_one_shape_are_refused(tmp_path: Path, capsys: Capture) -> None:
    for name in ("a", "b"):
        run_of(tmp_path / name)
    out = output_of(capsys, "bundle", tmp_path / "a", tmp_path / "b", "--to", tmp_path / "x.tar.gz", code=1)
    assert "pass only one of them\n" in out


def test_of_a_folder_the_guides_runs_that_fit_are_packed_and_others_listed(tmp_path: Path, capsys: Capture) -> None:
    """Runs as the steps of docs/how-to-vendor.md leave them: small, synthetic, interrupted, repeated."""
    reports = tmp_path / "reports"
    submission(reports)
    same: dict[str, Any] = {"hardware": "X9", "vendor": "acme", "nproc": 8}
    old = shutil.copytree(reports / "run-1x8", reports / "run-0")
    shutil.copytree(reports / "run-1x1", reports / "run-3")
    run_of(reports / "run-4", scale="small", **same)
    run_of(reports / "run-5", scale="reference", synthetic=True, **same)
    run_of(reports / "run-6", "crashed_rank", scale="reference", **same)
    out = output_of(capsys, "bundle", reports, "--to", tmp_path / "mine.tar.gz")
    lines = [line for line in out.splitlines() if line.startswith("left out: ")]
    assert lines == [
        f"left out: {reports}/{name}: {reason}"
        for name, reason in (
            ("run-0", "a newer run has the same shapes"),
            ("run-1x1", "a newer run has the same shapes"),
            ("run-4", "small scale"),
            ("run-5", "synthetic data"),
            ("run-6", "no successful round"),
        )
    ]
    assert "3 runs, complete" in out
    assert errors_of(capsys, "bundle", reports, "--scale=small", "--shapes=2x2", "--to", tmp_path / "x.tar.gz")[-1] == (
        "no run has a successful round at the small scale on real data"
    )
    assert "runs contain 1x8" in output_of(
        capsys, "bundle", old, *submission(tmp_path / "again"), "--to", tmp_path / "x.tar.gz", code=1
    )


def test_bundle_takes_other_shapes_and_the_small_scale(tmp_path: Path, capsys: Capture) -> None:
    add_case(tmp_path / "run", "converged_1x1")
    add_case(tmp_path / "run", "converged_1x2")
    finish(tmp_path / "run")
    options = ("--shapes=1x1,1x2", "--scale=small", "--to", tmp_path / "s.tar.gz")
    output_of(capsys, "bundle", tmp_path / "run", *options)
    assert "shape 'x'" in errors_of(capsys, "bundle", tmp_path / "run", "--shapes=x")[0]


def test_bundle_names_the_failure_of_a_round(tmp_path: Path, capsys: Capture) -> None:
    run = run_of(tmp_path / "run", "crashed_rank")
    out = output_of(capsys, "bundle", run, "--shapes=1x2", "--scale=small", "--to", tmp_path / "s.tar.gz", code=1)
    assert "1x2: no successful round: round 1: rank 1" in out


@pytest.mark.parametrize("name", ["readme", "calibrate", "affected", "import-vendor", "mllog", "table"])
def test_a_removed_command_names_its_replacement(name: str, capsys: Capture) -> None:
    (line,) = errors_of(capsys, name, "RUN")
    assert line.startswith(f"{name} was removed; ")
    assert name not in COMMANDS
