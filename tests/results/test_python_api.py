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
from pytest_flagperf.results import CaseResult, Outcome, StoredRun, Verdict, load_runs
from tests.helpers.stored_runs import faster, run_of

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
