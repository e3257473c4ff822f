"""The Python API: docs/python.md and the notebook docs/results.ipynb run on stored runs, and name what exists."""

import json
import os
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf import results
from pytest_flagperf.packages import PackageMissing
from pytest_flagperf.results import CaseResult, Outcome, StoredRun, Verdict, load, load_long, load_runs
from pytest_flagperf.results.tables import frames, store
from pytest_flagperf.results.verdicts import OneCard
from pytest_flagperf.stored import FormatError
from tests.helpers.stored_runs import add_case, faster, finish, run_of

REPO = Path(__file__).resolve().parents[2]
DOCUMENT, NOTEBOOK = REPO / "docs" / "python.md", REPO / "docs" / "results.ipynb"
CLASSES: list[type] = [StoredRun, CaseResult, Outcome, Verdict]


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    run_of(tmp_path / "reports" / "run20261121061129", rounds=faster(1.0, 1.01, 0.99))
    run_of(tmp_path / "reports" / "run20261122061129", rounds=faster(0.9, 0.92, 0.91))
    return tmp_path


def test_the_examples_run(reports: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(reports)
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        exec(block, names)  # in one namespace, as a reader would type them
    assert len(names["rounds"]) == 6
    assert names["failed"] == []
    assert len(names["losses"]) > 10
    assert re.match(r"\S+:1:1:3 passed \d+\.\d+\n\d+\.\d+ \S+/s higher host clock", capsys.readouterr().out)


def test_exported_names_are_imported_when_they_are_used_and_listed_in_the_document() -> None:
    assert all(getattr(results, name) for name in results.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Outcomes'"):
        results.Outcomes  # noqa: B018
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [name for name in results.__all__ if f"`{name}`" not in text and f"import {name}" not in text] == [
        "load_runs"
    ]  # it is in the first block of code
    for cls in CLASSES:
        _, title, section = text.partition(f"\n## {cls.__name__}\n")
        rows = re.findall(r"^\| (`[^|]+) \|", section.partition("\n## ")[0], re.MULTILINE)
        listed = [name for row in rows for name in re.findall(r"`(\w+)(?:\(name\))?`", row)]
        assert is_dataclass(cls)
        known = {field.name for field in fields(cls)} | set(dir(cls))
        assert title
        assert listed
        assert [name for name in listed if name not in known] == []


def test_runs_are_loaded_in_order_and_a_damaged_file_is_a_problem(reports: Path) -> None:
    damaged = reports / "reports" / "run20261121061129"
    next(damaged.glob("*/round2/outcome.json")).write_text("{")
    first, second = load_runs(reports / "reports")
    assert (first.directory.name, second.directory.name) == ("run20261121061129", "run20261122061129")
    assert [outcome.ok for outcome in first.cases[0].outcomes] == [True, False, True]
    assert "round2/outcome.json: changed after the run" in first.problems[0]
    assert first.changed == first.problems
    assert second.problems == ()
    with pytest.raises(ValueError, match="nowhere: no such directory"):
        load_runs(reports / "nowhere")


def outputs(notebook: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Return the source and the text outputs of each cell of code."""
    return [
        ("".join(cell["source"]), ["".join(one.get("text") or one["data"]["text/plain"]) for one in cell["outputs"]])
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


@pytest.mark.integration
def test_the_notebook_runs_in_a_kernel_and_its_outputs_are_current(reports: Path) -> None:
    (reports / NOTEBOOK.name).write_bytes(NOTEBOOK.read_bytes())
    argv = [
        sys.executable, "-c", "from nbclient.cli import main; main()", "--inplace", "--startup_timeout=120",
        NOTEBOOK.name,
    ]  # fmt: skip
    environment = {**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    done = subprocess.run(argv, cwd=reports, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    run = outputs(json.loads((reports / NOTEBOOK.name).read_text(encoding="utf-8")))
    stored = outputs(json.loads(NOTEBOOK.read_text(encoding="utf-8")))
    assert run == stored
    assert sum(map(len, (texts for _, texts in stored))) >= 6


# -- stored runs as tables: shape, types and units -----------------------------------------------------------


def test_one_row_per_round_and_one_column_per_metric(tmp_path: Path) -> None:
    run_of(tmp_path / "run1", rounds=faster(1.0, 1.1, 1.2))
    frame = load(tmp_path / "run1")
    assert len(frame) == 3
    assert list(frame["round"]) == [1, 2, 3]
    assert set(frame["run"]) == {"run1"}
    assert set(frame["case"]) == {"toy:pytorch:CPU:1:1:3"}
    assert frame["p_core"].is_monotonic_increasing
    assert frame.attrs["units"]["p_core"] == "images/s"
    assert frame.attrs["directions"]["e2e_time"] == "lower"
    assert frame["converged"].all()
    assert str(frame["started"].dtype).endswith("UTC]")
    first = store.load_run(tmp_path / "run1").cases[0].outcomes[0]
    for metric in first.metrics:
        assert frame[metric.name][0] == metric.value, metric.name


def test_a_run_given_twice_counts_once_and_types_do_not_depend_on_the_rounds(tmp_path: Path) -> None:
    for name in ("run1", "run2"):
        run_of(tmp_path / "reports" / name)
    assert list(load(tmp_path / "reports")["run"]) == ["run1", "run2"]
    twice = load([tmp_path / "reports", str(tmp_path / "reports" / "run1")])
    assert list(twice["run"]) == ["run1", "run2"]
    good = load(run_of(tmp_path / "good"))
    add_case(tmp_path / "bad", "crashed_rank")
    with pytest.warns(frames.RunWarning, match=r"results\.json"):
        bad = load(tmp_path / "bad")
    assert "ModuleNotFoundError" in bad["failure"][0]
    assert not bad["ok"][0]
    shared = [name for name in good.columns if name in bad.columns]
    assert (good.dtypes[shared] == bad.dtypes[shared]).all()
    assert {*frames.CASE, *frames.ABOUT, *frames.ORIGIN} <= set(shared)


def test_convergence_and_the_speed_up_are_columns_where_they_are_known(tmp_path: Path) -> None:
    frame = load(run_of(tmp_path / "fast", "throughput_only"))
    assert frame["converged"].isna().all()
    assert frame["throughput_only"].all()
    case_dir = add_case(tmp_path / "run", "converged_1x2")
    core = store.load_outcome(case_dir / "round1").value("p_core")
    assert core is not None
    store.save_one_card(case_dir, OneCard(core / 1.5, "this run"))
    frame = load(finish(tmp_path / "run"))
    assert frame["speedup"][0] == pytest.approx(1.5)
    assert frame["efficiency"][0] == pytest.approx(0.75)
    assert "speedup" not in load(run_of(tmp_path / "other")).columns


def test_the_long_table_contains_how_each_value_was_measured(tmp_path: Path) -> None:
    run_of(tmp_path / "run", rounds=faster(1.0, 1.0))
    wide, long = load(tmp_path / "run"), load_long(tmp_path / "run")
    assert tuple(long.columns) == frames.LONG
    assert len(long) == sum(len(row.dropna()) for _, row in wide[list(wide.attrs["units"])].iterrows())
    core = long[long["metric"] == "p_core"].iloc[0]
    assert (core["unit"], core["direction"]) == ("images/s", "higher")
    assert "after" in core["how"]
    assert core["value"] == wide["p_core"][0]


def test_suites_with_different_samples_have_no_common_unit_and_a_columns_name_is_kept(tmp_path: Path) -> None:
    run_of(tmp_path / "a")
    run_of(tmp_path / "b", sample_unit="sequences")
    frame = load(tmp_path)
    assert frame.attrs["units"]["p_core"] == frames.MIXED
    assert set(frame["sample_unit"]) == {"images", "sequences"}
    assert frame.attrs["units"]["e2e_time"] == "s"
    target = {"name": "samples", "direction": "higher", "unit": "", "target": 0.9}
    frame = load(run_of(tmp_path / "run", metric=target))
    assert frame["samples"][0] > 100
    assert "samples_metric" in frame.columns


def test_all_paths_without_a_run_are_reported(tmp_path: Path) -> None:
    run_of(tmp_path / "run20260101")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    wrong = [tmp_path / name for name in ("run20260102", "empty", "file")]
    with pytest.raises(FormatError) as error:
        load([*wrong, tmp_path / "run20260101"])
    lines = str(error.value).splitlines()
    assert len(lines) == 3
    assert "did you mean run20260101" in lines[0]
    with pytest.raises(FormatError, match="no run specified"):
        load([])


def test_a_missing_pandas_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_flagperf.packages.find_spec", lambda name: None)
    with pytest.raises(PackageMissing, match=r"tables need pandas.*pip install pandas$"):
        load(tmp_path)
