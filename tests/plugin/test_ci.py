"""Runs in CI: the last lines of the log, the JUnit file, the summary for GitHub."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import xmlschema

from .conftest import Toy

pytestmark = pytest.mark.slow
SCHEMA = Path(__file__).parent.parent / "schemas" / "junit-10.xsd"


def verdict(lines: list[str]) -> str:
    """Return the last line of the flagperf section, which must be the verdict."""
    start = max(number for number, line in enumerate(lines) if " flagperf ===" in line)
    section = lines[start + 1 : next(n for n in range(start + 1, len(lines)) if lines[n].startswith(("===", "- Gen")))]
    assert sum(line.startswith("flagperf: ") for line in section) == 1
    return section[-1]


def test_a_run_without_cases_has_a_verdict(toy: Toy) -> None:
    result = toy.run("suites/alpha", "--vendor=acme")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert verdict(result.outlines) == "flagperf: no case ran, 2 cases requested"
    result.stdout.fnmatch_lines(["not run: alpha:plain:X1:1:1:1: acme has no config*"])


def test_a_failure_has_the_case_and_its_logs_attached_also_with_workers(toy: Toy) -> None:
    toy.run("suites", "-k", "alpha and 1:2 and converges", "--set=fault=kill", "-n2")
    (case,) = toy.junit.iter("testcase")
    failure = case.find("failure")
    assert failure is not None
    assert failure.attrib["message"].startswith("alpha:plain:CPU:1:2:1: round 1: rank 1 on localhost was killed")
    assert "rank1.out.log" in (failure.text or "")
    (attached,) = [output.text or "" for output in case.findall("system-out")]
    paths = [Path(line[len("[[ATTACHMENT|") : -2]) for line in attached.splitlines()]
    assert [path.name for path in paths] == ["rank1.out.log", "rank0.out.log", "report.html"]
    assert not any(path.is_absolute() for path in paths)
    assert all((toy.root / path).is_file() for path in paths)


def test_a_dead_worker_is_a_failure_in_all_files(toy: Toy) -> None:
    """The worker dies before its round starts; the worker that replaces it passes."""
    (toy.root / "suites" / "conftest.py").write_text(
        "import os, pathlib, pytest\n"
        "@pytest.fixture\n"
        "def gates(gates):\n"
        "    try:\n"
        "        pathlib.Path('died').touch(exist_ok=False)\n"
        "    except FileExistsError:\n"
        "        return gates\n"
        "    os._exit(9)\n"
    )
    result = toy.run("suites", "-k", "alpha and 1:1:1 and converges", "-n1")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert [case.find("error") is not None for case in toy.junit.iter("testcase")].count(True) == 1
    (case,) = json.loads((toy.runs[-1] / "results.json").read_text())["cases"]
    (died,) = [each for given in case["verdicts"].values() for each in given if not each["ok"]]
    assert (case["ok"], died["name"]) == (False, "worker")
    assert verdict(result.outlines) == "flagperf: 0 of 1 case passed, 1 failed (alpha:plain:CPU:1:1:1)"
    result.stdout.fnmatch_lines(["failed: alpha:plain:CPU:1:1:1: worker died, expected running"])


@pytest.mark.parametrize("logging", ["all", "system-err"])
def test_captured_output_is_kept_in_a_single_element_with_paths_relative_to_gitlabs_project(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, logging: str
) -> None:
    monkeypatch.setenv("GITLAB_CI", "true")
    monkeypatch.setenv("CI_PROJECT_DIR", str(toy.root))
    words = (f"-ojunit_logging={logging}", "-ojunit_suite_name=nightly")
    toy.run("suites", "-k", "alpha and 1:1:1 and converges", "--set=fault=exit", *words)
    (suite,) = toy.junit.iter("testsuite")
    assert suite.attrib["name"] == "nightly"
    (output,) = toy.junit.iter("system-out")
    log = "alpha_plain_CPU_1_1_1/round1/localhost_noderank0/rank0.out.log"
    assert f"[[ATTACHMENT|reports/{toy.runs[0].name}/{log}]]" in (output.text or "").splitlines()


def test_the_file_matches_the_schema_of_jenkins(toy: Toy) -> None:
    (toy.root / "suites" / "alpha" / "test_mine.py").write_text(
        "import pytest\n@pytest.fixture\ndef broken(training): raise OSError('no')\n"
        "def test_mine(case, broken): pass\ndef test_skip(case): pytest.skip('no')\n"
    )
    toy.run("suites/alpha", "--set=fault=exit")
    root = toy.junit
    schema = xmlschema.XMLSchema(str(SCHEMA))
    # Jenkins reads properties of a test, but its schema does not have them yet.
    for case in root.iter("testcase"):
        for properties in case.findall("properties"):
            case.remove(properties)
    schema.validate(root)
    next(root.iter("testcase")).append(ET.Element("surprise"))
    assert not schema.is_valid(root)


@pytest.fixture
def github(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The summary file of a step, with text of another program."""
    path = toy.root / "summary.md"
    path.write_text("of another\n")
    for name, value in {
        "CI": "true",
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(path),
        "GITHUB_TOKEN": "ghs_secret",
    }.items():
        monkeypatch.setenv(name, value)
    return path


def test_the_summary_is_appended_once_also_with_workers(toy: Toy, github: Path) -> None:
    result = toy.run("suites", "-k", "alpha", "--set=efficiency=0.5", "-n2", "--html=page.html")
    text = github.read_text()
    assert text.startswith("of another\n### flagperf: 1 of 2 cases passed, 1 failed")
    assert text.count("### flagperf") == 1
    assert "\n  - " in text
    assert "80.0 %" in text
    line = verdict(result.outlines)
    assert line.startswith("flagperf: 1 of 2 cases passed, 1 failed (alpha:plain:CPU:1:2:1: speedup")
    assert line.endswith("report.html"), "the log of a CI system is wide"
    assert "ghs_secret" not in text + result.stdout.str()


def test_an_unwritable_summary_is_one_line_a_full_one_stays_and_outside_github_there_is_none(
    toy: Toy, github: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(toy.root / "none" / "summary.md"))
    result = toy.run("suites", "-k", "alpha and 1:1:1")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["flagperf: cannot write GITHUB_STEP_SUMMARY=*: *"])
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(github))
    github.write_bytes(b"x" * (1024 * 1024 - 10))
    assert toy.run("suites", "-k", "alpha and 1:1:1 and converges").ret == 0
    assert github.stat().st_size == 1024 * 1024 - 10
    github.write_text("of another\n")
    monkeypatch.delenv("GITHUB_ACTIONS")
    toy.run("suites", "-k", "alpha and 1:1:1 and converges")
    assert github.read_text() == "of another\n"
