"""The command line over stored runs: what it prints, what it writes, and its exit codes."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_flagperf.commands import all_commands, main, parser
from pytest_flagperf.results.tables import store
from pytest_flagperf.stored import live_record
from pytest_flagperf_export.performance import performance_tables
from tests.helpers import trees
from tests.helpers.command_line import Capture, errors_of, flagperf, output_of
from tests.helpers.live_runs import LiveRun
from tests.helpers.stored_runs import add_case, faster, finish, run_of, submission


@pytest.mark.parametrize("name", all_commands())
def test_each_command_explains_itself_and_names_a_misspelt_option(name: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    example = all_commands()[name].EXAMPLE
    assert f"example: flagperf {name} {example}" in text
    parser(all_commands()).parse_args([name, *example.split()])
    assert "``" not in text
    assert errors_of(capsys, name, "--hepl=1")[0].startswith("--hepl: unknown option; did you mean --help")


@pytest.mark.parametrize("command", [("show",), ("bundle",), ("export", "--format=csv"), ("report", "--all")], ids=str)
def test_a_path_without_a_run_is_an_error(command: tuple[str, ...], tmp_path: Path, capsys: Capture) -> None:
    assert errors_of(capsys, *command, tmp_path / "nothing") == [f"{tmp_path / 'nothing'}: no such directory"]
    (baselines := tmp_path / "baselines").mkdir()
    run = run_of(tmp_path / "run20260101000000")
    assert errors_of(capsys, *command, baselines)[0].endswith(f" no runs; expected a run directory, such as {run}")


def test_what_a_killed_run_lacks_is_noted(tmp_path: Path, capsys: Capture) -> None:
    add_case(tmp_path / "run", "converged_1x1")
    assert "note: " in output_of(capsys, "show", tmp_path / "run")


def test_a_run_that_has_not_ended_says_how_far_it_is(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = LiveRun(tmp_path / "run", ("toy:pytorch:CPU:1:1:1", "glm:pytorch:CPU:1:1:1"))
    add_case(run.path, "converged_1x1")
    last = output_of(capsys, "show", run.path).splitlines()[-1]
    assert last == f"flagperf: still running: 1 of 2 cases measured; flagperf watch {run.path} follows it"
    monkeypatch.setattr(live_record, "is_alive", lambda _: False)
    out = output_of(capsys, "show", run.path)
    assert out.endswith(f"flagperf: killed: 1 of 2 cases measured; pytest --resume={run.path} continues it\n")
    assert "results.json" not in out
    run.end()
    finish(run.path)
    assert "1 of 1 case passed" in output_of(capsys, "show", run.path), "the control"
    run.close()


def test_list_names_suites_vendors_chips_shapes_and_scales(tmp_path: Path, capsys: Capture) -> None:
    trees.tree(tmp_path)
    trees.write_config(tmp_path, name="config_X9x1x1.py")
    out = " ".join(output_of(capsys, "list", tmp_path).split())
    assert "toy:pytorch top1 reference >= 0.750, small >= 0.900" in out
    assert "acme Acme reference X9 (up to 8 per host), A1x2" in out
    assert "toy:pytorch acme X9 1x1, 1x8" in out


def test_list_of_many_chips_fits_a_terminal(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    trees.tree(tmp_path)
    chips = "".join(f"[chips.C{number}]\ndevices_per_host = 8\n" for number in range(20))
    head = 'name = "Many"\n[framework.pytorch]\ndevice = "cpu"\nbackend = "gloo"\n'
    trees.write_vendor(tmp_path, "many", toml=head + chips)
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
