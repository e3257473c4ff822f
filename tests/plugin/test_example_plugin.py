"""The example package of docs/extending.md, built and installed as users do it: each of its hooks is used."""

import json
import os
import re
from pathlib import Path

import pytest

from docsite.blocks import blocks_of_file
from tests.helpers.plugin_packages import install_package
from tests.helpers.trees import PLAIN_MEASUREMENT_TOML

from .conftest import Toy

EXAMPLE = Path(__file__).parents[1] / "example_plugin"


def test_the_document_shows_the_files_of_the_example() -> None:
    blocks = blocks_of_file(EXAMPLE.parents[1], "docs/extending.md")
    files_and_texts = (block.text.split("\n", 1) for block in blocks if block.text.startswith("# "))
    shown = {line.removeprefix("# "): text for line, text in files_and_texts}
    assert shown.pop("flagperf.toml")
    assert shown == {name: (EXAMPLE / name).read_text(encoding="utf-8") for name in shown}
    page = (EXAMPLE.parents[1] / "docs/extending.md").read_text(encoding="utf-8")
    files = (path.relative_to(EXAMPLE).as_posix() for path in EXAMPLE.glob("*/*.py"))
    assert [file for file in files if file not in shown and f"/example_plugin/{file})" not in page] == []


@pytest.fixture(scope="session")
def installed_example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_package(EXAMPLE, tmp_path_factory.mktemp("example") / "site")


@pytest.fixture
def example(toy: Toy, installed_example: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    monkeypatch.setenv("PYTHONPATH", str(installed_example), prepend=os.pathsep)
    return toy


@pytest.mark.slow
def test_a_run_uses_every_hook_of_the_example(example: Toy) -> None:
    (example.root / "flagperf.toml").write_text("[engines.processes]\ntimeout_s = 60\n")
    result = example.run("suites", "-k", "alpha", "--vendor=lab", "--nodes=1x2", "--engine=processes")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*engine: processes of this machine, for at most 60 s per round"])
    (run,) = example.runs
    results = json.loads((run / "results.json").read_text())
    assert results["run"]["versions"]["lab-flagperf"] == "1.2"
    (case,) = results["cases"]
    assert (case["case"], case["ok"], case["outcomes"][0]["vendor"]) == ("alpha:plain:L1:1:2:1", True, "lab")
    assert [
        rank["rank"]
        for rank in json.loads((next(run.glob("alpha*/round1")) / "round.json").read_text())["hosts"][0]["ranks"]
    ] == [0, 1]
    (verdicts,) = [verdicts for test, verdicts in case["verdicts"].items() if test.startswith("test_plugins")]
    assert [(one["name"], one["kind"], one["ok"]) for one in verdicts] == [("lab.ready", "plugin", True)]
    # Without the tree and the engine, from the run's directory alone.
    exported = example.flagperf("export", run, "--format=prometheus")
    assert exported.stdout == f"{run}/flagperf.prom\n"
    assert re.search(
        r'^flagperf_p_core\{run="run\d+",case="alpha:plain:L1:1:2:1"\} \d',
        (run / "flagperf.prom").read_text(),
        re.MULTILINE,
    )
    assert re.search(r"^lab +Lab +small +lab-flagperf 1\.2 +L1", example.flagperf("list").stdout, re.MULTILINE)


@pytest.mark.slow
def test_a_suite_of_the_examples_kind_runs_and_is_shown(example: Toy) -> None:
    toml = PLAIN_MEASUREMENT_TOML.replace('kind = "measurement"', 'kind = "transfer"')
    example.measurement(toml=toml)
    test = example.root / "suites" / "gamma" / "test_gamma.py"
    text = test.read_text(encoding="utf-8").replace("MeasurementBenchmark", "Benchmark")
    test.write_text(text.replace("    pass", '    kind = "transfer"'), encoding="utf-8")
    case = "gamma:plain:CPU:1:1:1"
    expected = f'[[expected]]\ncase = "{case}"\nverdict = "grows *"\nreason = "an old cable"\n'
    (example.root / "flagperf.toml").write_text(expected)
    planned = example.run("suites", f"--case={case}", "--plan", "-v")
    planned.stdout.fnmatch_lines(["*labels    measures transfers"])
    result = example.run("suites", f"--case={case}")
    result.stdout.fnmatch_lines([f"*{case}: copy 20 GB/s*", "*expected to fail but passed: grows copy*"])
    selected = example.run("suites", f"--case={case}", "-m", "grows", "--strict-markers", "--collect-only", "-q")
    assert re.findall(r"::(test_\w+)", str(selected.stdout)) == ["test_grows"]
    (run,) = map(str, example.runs)
    (stored,) = json.loads((example.runs[0] / "results.json").read_text())["cases"]
    judged = {one["name"]: (one["kind"], one["ok"]) for verdicts in stored["verdicts"].values() for one in verdicts}
    assert (stored["ok"], judged["grows copy"]) == (True, ("grows", True))
    assert ">Transfer</h3>" in (example.runs[0] / "report.html").read_text()
    assert f"{case}: copy 20 GB/s" in example.flagperf("show", run).stdout
