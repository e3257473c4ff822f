"""The gates of a run: accepted baselines, validity warnings and expected failures."""

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.commands import main

from .conftest import Toy

pytestmark = pytest.mark.slow
ONE = ("suites/alpha", "--nodes=1x1")
THROUGHPUT = (*ONE, "-k", "throughput")


def verdicts(toy: Toy, test: str = "throughput", run: int = -1) -> dict[str, Any]:
    (path,) = toy.runs[run].glob(f"alpha*/verdicts/test_{test}*.json")
    return {one["name"]: one for one in json.loads(path.read_text())["verdicts"]}


def baseline(toy: Toy) -> Path:
    return toy.root / "reports" / "baselines" / "alpha_plain_CPU_1_1.json"


def test_an_accepted_run_passes_and_a_regression_fails_the_test_junit_and_the_exit_code(toy: Toy) -> None:
    baseline(toy).parent.mkdir(parents=True)
    first = toy.run(*ONE, "--repeat=2")
    first.assert_outcomes(passed=3)
    advice = "flagperf accept reports/run* accepts the figures of this run as baselines"
    first.stdout.fnmatch_lines([advice])
    assert main(["accept", str(toy.runs[-1])]) == 0
    assert json.loads(baseline(toy).read_text())["accepted"]["run"] == toy.runs[0].name
    again = toy.run(*THROUGHPUT)
    again.assert_outcomes(passed=1, deselected=1)
    again.stdout.fnmatch_lines([f"*baselines: 1 of 1 case: {baseline(toy).parent}"])
    again.stdout.no_fnmatch_line(advice)
    assert verdicts(toy)["baseline p_core"]["ok"]
    unlike = ("--set=train_batch_size=8", "--ignore-differences")
    toy.run(*THROUGHPUT, *unlike).assert_outcomes(passed=1, deselected=1)
    assert "although different: batch_per_card: 2 -> 8" in verdicts(toy)["baseline p_core"]["sentence"]
    program = toy.root / "suites" / "alpha" / "plain" / "run_pretraining.py"
    program.write_text(program.read_text().replace("config.speed * world", "config.speed * 0.9 * world"))
    worse = toy.run(*THROUGHPUT)
    worse.assert_outcomes(failed=1, deselected=1)
    assert worse.ret == 1
    sentence = "*p_core is 90 samples/s (1 round), 10.0 % below the baseline's 100 samples/s; expected at least 95*"
    worse.stdout.fnmatch_lines([f"{sentence}{toy.runs[0].name}*"])
    worse.stdout.no_fnmatch_line(advice)
    assert not verdicts(toy)["baseline p_core"]["ok"]
    (failure,) = toy.junit.iter("failure")
    assert "10.0 % below the baseline's" in (failure.text or "") + failure.get("message", "")


EXPECTED = """
[[expected]]
case = "alpha:*:CPU:1:2"
verdict = "efficiency"
reason = "two cores share one cache"
"""


def test_an_expected_failure_passes_and_all_reports_have_its_reason(toy: Toy) -> None:
    (toy.root / "flagperf.toml").write_text(EXPECTED)
    result = toy.run("suites/alpha", "--set=efficiency=0.7", "-n2")
    result.assert_outcomes(passed=4, xfailed=1)
    assert result.ret == 0
    assert verdicts(toy, "speedup")["efficiency"]["expected_failure"] == "two cores share one cache"
    (skipped,) = toy.junit.iter("skipped")
    assert "two cores share one cache" in skipped.get("message", "")
    assert "two cores share one cache" in (toy.runs[0] / "report.html").read_text()
    (case,) = [one for one in json.loads((toy.runs[0] / "results.json").read_text())["cases"] if ":1:2:" in one["case"]]
    assert case["ok"] is True
    toy.run("suites/alpha", "--set=efficiency=0.7", "--runxfail").assert_outcomes(passed=4, failed=1)
