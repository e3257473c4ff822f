"""Runs: their ends, their reports, and their processes."""

import csv
import json
import re
import sys
import xml.etree.ElementTree as ET
from html import unescape
from pathlib import Path

import pytest

from tests.helpers.processes import running
from tests.helpers.trees import set_options

from .conftest import Toy

pytestmark = pytest.mark.slow


def test_a_run_passes_and_leaves_its_reports(toy: Toy) -> None:
    result = toy.run("suites", "-k", "alpha", "--html=mine.html", "--junitxml=mine.xml")
    result.assert_outcomes(passed=5, deselected=5)
    (run,) = toy.runs
    assert {"report.html", "junit.xml", "results.json", "results.csv"} <= {path.name for path in run.iterdir()}
    with (run / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["case"] for row in rows] == ["alpha:plain:CPU:1:1:1", "alpha:plain:CPU:1:2:1"]
    results = json.loads((run / "results.json").read_text())
    assert results["schema"] >= 1
    assert results["run"]["controller"].keys() >= {"load_1min", "memory_available", "harness_cpu_s", "harness_memory"}
    for page in (run / "report.html", toy.root / "mine.html"):
        assert "alpha:plain:CPU:1:2:1" in page.read_text()
    for junit in (run / "junit.xml", toy.root / "mine.xml"):
        assert any("p_core" in (item.get("name") or "") for item in ET.parse(junit).iter("property"))
    result.stdout.fnmatch_lines(["*generated xml file: *mine.xml*", "*Generated html report: *mine.html*"])
    result.stdout.fnmatch_lines(["*alpha:plain:CPU:1:2:1*", f"*{run.name}/report.html*"])
    assert not any("[rank 0]" in line for line in result.outlines)


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("fault=kill", "*round 1: rank 1*SIGKILL*"),
        ("fault=nan", "*round 1*loss was NaN at step 1*"),
        ("learning_rate=0", "*accuracy reached 0* expected accuracy >= 0.8*"),
    ],
)
def test_a_fault_fails_the_test_with_round_rank_and_cause(toy: Toy, setting: str, line: str) -> None:
    result = toy.run("suites", "-k", "alpha and 1:2 and converges", f"--set={setting}")
    result.assert_outcomes(failed=1, deselected=9)
    assert result.ret == 1
    result.stdout.fnmatch_lines([line])
    assert "localhost: start" not in result.stdout.str()  # the log, which a level shows
    assert "Traceback" not in result.stdout.str().split("short test summary")[0].split("FAILURES")[1][:200]
    assert [one.pid for one in running() if one.environment.get("FLAGPERF_CASE", "").startswith(f"{toy.root}/")] == []
    if setting == "fault=nan":  # all reports agree on it
        (case,) = json.loads((toy.runs[0] / "results.json").read_text())["cases"]
        assert (case["converged"], case["ok"]) == (0, False)
        with (toy.runs[0] / "results.csv").open() as file:
            assert next(csv.DictReader(file))["converged"] == "false"
        result.stdout.fnmatch_lines(["*0/1*0.800*"])


def test_a_poor_speedup_is_measured_again_and_fails(toy: Toy) -> None:
    result = toy.run("suites", "-k", "alpha", "--set=efficiency=0.5", "-v")
    result.assert_outcomes(passed=4, failed=1, deselected=5)
    result.stdout.fnmatch_lines(
        ["*speed-up below the requirement; measuring it again (3 of*", "*efficiency 50.0 %*expected at least 80.0 %*"]
    )
    turns = sorted(path.parent.name for path in toy.runs[0].glob("alpha*/turn*/outcome.json"))
    assert turns == [f"turn{number}_{name}" for number in (1, 2, 3) for name in ("all_cards", "one_card")]


def test_a_model_that_does_not_fit_into_one_card_has_no_speedup(toy: Toy) -> None:
    suites, vendor = toy.root / "suites", toy.root / "vendors/cpu/vendor.toml"
    toml = suites / "alpha/plain/suite.toml"
    toml.write_text('memory = "large"\ncommon = ["large"]\n' + toml.read_text())
    (suites / "common/large").mkdir(parents=True)
    (suites / "common/large/__init__.py").touch()
    reply = "[{'moment': 'loss', 'bytes': {'weights': 2**31}}] * len(json.load(sys.stdin))"
    (suites / "common/large/memory.py").write_text(f"import json, sys\nprint(json.dumps({reply}))\n")
    declared = vendor.read_text()
    vendor.write_text(f"{declared}memory_gib = 1\n")
    result = toy.run("suites", "-k", "alpha and speedup", "-rs")
    result.assert_outcomes(skipped=1, deselected=9)
    assert "no speed-up: alpha:plain:CPU:1:1:1: about 2.0 GiB" in result.stdout.str()
    assert not list(toy.runs[0].glob("alpha*/one_card"))
    vendor.write_text(f"{declared}memory_gib = 4\n")
    failed = toy.run("suites", "-k", "alpha and speedup", "--set=fault=import", "-rs")
    assert "no speed-up: no round of alpha:plain:CPU:1:2:1 finished" in failed.stdout.str()
    assert not list(toy.runs[-1].glob("alpha*/one_card"))
    toy.run("suites", "-k", "alpha and speedup").assert_outcomes(passed=1, deselected=9)


def test_parallel_workers_share_the_cases_and_one_report(toy: Toy) -> None:
    result = toy.run("suites", "-n2", "-v")
    result.assert_outcomes(passed=10)
    (run,) = toy.runs
    assert [result.stdout.str().count(name) for name in ("junit.xml", "results.json")] == [1, 1]
    with (run / "results.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 4
    assert (run / "report.html").is_file()
    worker: dict[str, set[str]] = {}
    for line in result.outlines:
        if line.startswith("[gw") and "suites/" in line:
            model = line.split("suites/")[1].split("/")[0]
            worker.setdefault(model, set()).add(line[:5])
    assert all(len(workers) == 1 for workers in worker.values()), "a suite's cases stay on one worker"
    assert set(worker) == {"alpha", "beta"}


def test_a_round_runs_once_for_two_files_in_parallel(toy: Toy) -> None:
    (toy.root / "suites" / "alpha" / "test_mine.py").write_text(
        "def test_mine(case, training, cluster, container, monitors, plan):\n"
        "    assert training.value('p_core') > 0\n"
        "    assert str(case) == training.case\n"
        "    assert container.python\n"
        "    assert list(monitors) and len(cluster) == 1\n"
    )
    result = toy.run("suites/alpha", "--nodes=1x1", "-n2", "--set=step_s=0.05", "--dist=worksteal")
    result.assert_outcomes(passed=3)
    assert len(list(toy.runs[-1].glob("alpha*/round*"))) == 1
    assert len(list(toy.runs[-1].glob("alpha*/round1/*/start_plain_task.log"))) == 1


def test_with_workers_everything_is_checked_before_the_start_and_a_plan_is_printed(toy: Toy) -> None:
    result = toy.run("suites", "-n2", "--set=learning_rat=1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "did you mean learning_rate" in result.stdout.str() + result.stderr.str()
    assert not list(toy.root.glob("reports/run*/*/round*"))
    result = toy.run("suites", "-k", "alpha and 1:2", "--plan", "-n2")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["alpha:plain:CPU:1:2:1 *"])


def test_tests_of_the_user_count_and_strict_does_not_change_an_expected_failure(toy: Toy) -> None:
    (toy.root / "suites" / "alpha" / "test_mine.py").write_text(
        "import pytest\n@pytest.mark.xfail(reason='known')\ndef test_known(case): assert False\n"
        "def test_mine(case, training): assert False, 'why'\n"
    )
    toy.run("suites/alpha", "--nodes=1x1", "--strict").assert_outcomes(passed=2, failed=1, xfailed=1)
    (case,) = json.loads((toy.runs[0] / "results.json").read_text())["cases"]
    assert case["ok"] is False


def test_a_linked_tree_keeps_its_cases_apart(toy: Toy) -> None:
    link = toy.root.parent / f"{toy.root.name}-link"
    link.symlink_to(toy.root)
    try:
        result = toy.run(f"--rootdir={link}", f"{link}/suites", "--collect-only", "-q", "--nodes=1x1")
    finally:
        link.unlink()
    collected = [line for line in result.outlines if "::" in line]
    assert len(collected) == 4
    assert all(line.split("suites/")[1].split("/")[0] in line.rsplit("[", 1)[1] for line in collected)


def test_tests_outside_suites_have_reports(toy: Toy) -> None:
    (toy.root / "mine").mkdir()
    (toy.root / "mine" / "test_mine.py").write_text("def test_mine(case, training): assert training.ok\n")
    result = toy.run("mine", "-k", "alpha and 1:1:1")
    result.assert_outcomes(passed=1, deselected=3)
    assert {"report.html", "junit.xml", "results.json"} <= {path.name for path in toy.runs[0].iterdir()}


def test_a_problem_is_reported_once_and_an_unusable_reports_folder_is_one(toy: Toy) -> None:
    set_options(toy.root, python="/nonexistent/python3")
    result = toy.run("suites/alpha", "--nodes=1x1", "-k", "throughput")
    assert result.ret == 1
    failures = result.stdout.str().split("FAILURES")[-1].split("short test summary")[0]
    assert failures.count("/nonexistent/python3") <= 2
    assert "direct cause" not in failures
    (toy.root / "file").write_text("")
    result = toy.run("suites/alpha", "--reports=file")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*file*--reports*"])


def rows(page: str) -> list[str]:
    """Return the cells of the rows of tests, as pytest-html stores them."""
    found = re.search(r'data-jsonblob="([^"]*)"', page)
    assert found is not None
    tests = json.loads(unescape(found[1]))["tests"]
    return ["".join(row["resultsTableRow"]) for each in tests.values() for row in each]


def test_tests_link_to_the_section_of_their_case_and_a_failure_comes_first(toy: Toy) -> None:
    toy.run("suites", "-k", "alpha", "-n2").assert_outcomes(passed=5)
    page = (toy.runs[0] / "report.html").read_text()
    for case in ("case-alpha-plain-CPU-1-1-1", "case-alpha-plain-CPU-1-2-1"):
        assert page.count(f'id="{case}"') == 1
        assert sum(f'href="#{case}"' in row for row in rows(page)) in (2, 3)
    assert "2 of 2 cases converged" in page
    toy.run("suites", "-k", "alpha and 1:1:1", "--set", "learning_rate=0")
    page = (toy.runs[-1] / "report.html").read_text()
    first = page[page.index('id="summary"') : page.index('id="overview"')]
    assert "1 of 1 case failed" in first
    assert "#case-alpha-plain-CPU-1-1-1" in first


def test_cases_that_nobody_selected_are_in_no_report(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.config("alpha", "1x1", "learning_rate = 0.05\n")  # beta and 1x2 have no config; both are only collected
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(toy.root / "summary.md"))
    result = toy.run("suites", "-k", "alpha and 1:1:1", "--vendor=acme", "--synthetic")
    (run,) = toy.runs
    stored = json.loads((run / "results.json").read_text())["run"]
    assert (stored["selected"], stored["not_run"]) == (["alpha:plain:X1:1:1:1"], [])
    show = toy.pytester.run(Path(sys.executable).with_name("flagperf"), "show", run).stdout.str()
    page = unescape((run / "report.html").read_text())
    page = page[page.index('id="summary"') : page.index('id="overview"')]
    github = (toy.root / "summary.md").read_text()
    for text in (result.stdout.str(), show, page, github, (run / "junit.xml").read_text()):
        assert "alpha" in text
        assert [word for word in ("beta", "1:2:1", "not run") if word in text] == []


def test_links_to_logs_are_relative_to_each_page(toy: Toy) -> None:
    result = toy.run("suites", "-k", "alpha and 1:1:1", "--html=out/mine.html", "--self-contained-html")
    (run,) = toy.runs
    for page in (toy.root / "out" / "mine.html", run / "report.html"):
        logs = re.findall(r'href="([^"#]*rank0\.out\.log)"', page.read_text())
        assert logs
        assert all((page.parent / log).is_file() for log in logs)
    result.stdout.fnmatch_lines([f"flagperf: 1 of 1 case passed*{run.name}/report.html"])


@pytest.mark.parametrize("off", [("html",), ("metadata",), ("junitxml", "skipping"), ("terminal",), ("xdist",)])
def test_without_a_plugin_the_other_reports_are_written(toy: Toy, off: tuple[str, ...]) -> None:
    words = [f"-pno:{name}" for name in off]
    result = toy.run("suites", "-k", "alpha and 1:1:1 and converges", "--set=learning_rate=0", *words)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    expected = {"report.html", "results.json", "results.csv", *(["junit.xml"] if "junitxml" not in off else [])}
    assert expected <= {path.name for path in toy.runs[0].iterdir()}
    assert "1 of 1 case failed" in (toy.runs[0] / "report.html").read_text()
