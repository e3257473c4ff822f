"""The report of pytest-html: a section for each case, with links from the rows of its tests, also with workers."""

import json
import re
import sys
from html import unescape
from pathlib import Path

import pytest

from .conftest import Toy

pytestmark = pytest.mark.slow


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
        assert "beta" not in text
        assert "1:2:1" not in text
        assert "not run" not in text
    assert "flagperf: 1 of 1 case passed" in result.stdout.str()
    assert "flagperf: 1 of 1 case passed" in show


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
