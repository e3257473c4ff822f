"""The properties and attachments of JUnit files, and the summary for GitHub."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.sax.saxutils import quoteattr

import pytest

from pytest_flagperf.plugin.reports import pytest_runtest_makereport
from pytest_flagperf.plugin.shared import RUN
from pytest_flagperf.report.export import github, junit
from pytest_flagperf.report.export.junit import attachments, properties
from pytest_flagperf.report.terminal.summary import RunSummary, summarize_run
from pytest_flagperf.results.measured.validity import ValidityWarning
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.results.verdicts.case_result import FAILED, CaseResult, CaseSummary
from tests.helpers.results_help import recorded, with_metric


def test_properties_are_text_listed_once_for_the_case_and_for_each_round() -> None:
    values = dict(properties([recorded("converged_1x2")]))
    assert float(values["round1.p_core[images/s]"]) == pytest.approx(3368.42, abs=0.01)
    assert values["target.top1"] == "0.900"
    assert values["environment.device"] == "a processor"
    assert len(properties([recorded("converged_1x2")])) == len(values)
    first = recorded("converged_1x1")
    names = [name for name, _ in properties([first, replace(first, round=2, seed=7)])]
    assert len(names) == len(set(names))
    assert names.count("case") == names.count("environment.device") == 1
    assert {"round1.seed", "round2.seed", "round1.p_core[images/s]", "round2.p_core[images/s]"} <= set(names)


def test_a_property_is_only_in_the_first_test_of_a_case() -> None:
    once = junit.OncePerCase()
    first, later = recorded("converged_1x1"), replace(recorded("converged_1x1"), round=2)
    converges = once.filter("test_converges", properties([first]))
    assert converges == properties([first])
    throughput = dict(once.filter("test_throughput", properties([first, later])))
    assert "round1.seed" not in throughput
    assert "environment.device" not in throughput
    assert {"case", "round2.seed"} <= throughput.keys()
    assert once.filter("test_converges", properties([first])) == converges, "the same test again, as of a rerun"
    other = properties([replace(first, case="bert:pytorch:CPU:1:1:1")])
    assert once.filter("test_other", other) == other
    assert once.filter("not of a case", [("mine", "1")]) == [("mine", "1")]


@pytest.mark.parametrize(
    ("value", "text"),
    [(18.630643484000757, "18.6306"), (28800.0, "28800"), (34359738368.0, "34359738368"), (math.nan, "nan"), (0, "0")],
)
def test_figures_have_at_most_six_significant_digits(value: float, text: str) -> None:
    values = dict(properties([with_metric(recorded("converged_1x2"), "p_core", value)]))
    assert values["round1.p_core[images/s]"] == text


def test_each_warning_has_its_own_property_and_all_are_valid_in_xml_and_json() -> None:
    outcome = replace(
        recorded("converged_1x1"),
        warnings=("one", "two"),
        validity_warnings=(ValidityWarning("throttled", "the clock was held back"),),
    )
    values = dict(properties([outcome]))
    assert [values["round1.warning1"], values["round1.warning2"]] == ["one", "two"]
    assert values["round1.validity_warning1"] == "the clock was held back"
    outcome = replace(recorded("crashed_rank"), environment={"device": "a\x00b\x1b"})
    listed = properties([outcome])
    assert all(type(name) is type(value) is str for name, value in listed)
    assert ("environment.device", "a\\x00b\\x1b") in listed
    assert json.dumps(listed)
    assert [quoteattr(value) for _, value in listed]


def test_logs_of_failed_ranks_come_first_and_their_number_is_limited() -> None:
    outcome = recorded("crashed_rank")
    assert outcome.failures[0].rank == 1
    many = replace(outcome, logs=tuple(f"localhost_noderank0/rank{rank}.out.log" for rank in range(64)))
    paths = junit.logs(Path("/run"), [recorded("converged_1x2"), many])
    assert paths[0].name == "rank1.out.log"
    assert paths[0].parent == Path("/run") / many.directory / "localhost_noderank0"
    assert len(paths) == junit.MAX_LOGS


def test_attachments_are_relative_to_workspace_or_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, outside = tmp_path / "project" / "a.log", tmp_path / "b.log"
    inside.parent.mkdir()
    project = str(inside.parent)
    lines = f"[[ATTACHMENT|a.log]]\n[[ATTACHMENT|{outside}]]\n"
    assert attachments([inside, outside], {"WORKSPACE": project}) == lines
    assert attachments([inside, outside], {"GITHUB_WORKSPACE": project}) == lines
    monkeypatch.chdir(inside.parent)
    assert attachments([inside, outside], {}) == lines
    gitlab = {"GITLAB_CI": "true", "CI_PROJECT_DIR": project}
    assert attachments([inside, outside], gitlab) == "[[ATTACHMENT|a.log]]\n"


def test_the_time_of_a_test_is_without_the_wait_for_other_runs() -> None:
    run = SimpleNamespace(waited_s=83.8)
    item: Any = SimpleNamespace(config=SimpleNamespace(stash={RUN: run}))
    assert [reported(item, 93.7), reported(item, 9.9)] == pytest.approx([9.9, 9.9])


def reported(item: Any, duration: float) -> float:
    call: Any = None
    hook = pytest_runtest_makereport(item, call)
    next(hook)
    report: Any = SimpleNamespace(duration=duration)
    with pytest.raises(StopIteration) as ended:
        hook.send(report)
    return float(ended.value.value.duration)


# -- the summary for GitHub: texts are escaped, and the size is limited --------------------------------------

HOSTILE = "50 %, a:b\r\n::error::x | <script>`*[link](http://x)"


def summary(number: int, state: str = FAILED, **more: Any) -> CaseSummary:
    return CaseSummary(f"bert:pytorch:CPU:1:2:{number}", state, **more)


def run_of(*replays: str) -> RunSummary:
    cases = [CaseResult(recorded(name).case, (recorded(name),)) for name in replays]
    return summarize_run(StoredRun(Path("run1"), None, tuple(cases)), not_run=["glm: has no config"])


def test_the_summary_begins_with_verdict_and_failures_and_texts_are_no_markup() -> None:
    text = github.summary(run_of("converged_1x1", "crashed_rank"))
    lines = text.splitlines()
    assert lines[0].startswith("### flagperf: 0 of 3 cases passed, 2 failed")
    assert text.index("ModuleNotFoundError") < text.index("| case |") < text.index("<details>")
    rows = [line for line in lines if line.startswith("| ")]
    assert len({line.count("|") for line in rows}) == 1
    assert len(rows) == 4
    assert "- glm: has no config" in lines
    text = github.summary(RunSummary(summaries=(summary(1, failures=(HOSTILE,), warnings=(HOSTILE,)),)))
    assert "<script" not in text
    assert "\\|" in text
    assert "\\[link\\]" in text
    assert all(not line.startswith("::") for line in text.splitlines())


@pytest.mark.parametrize("limit", [0, 20, 100, 1000, 3000, 100_000, 10_000_000])
def test_the_summary_has_a_size_limit_and_reports_truncation(limit: int) -> None:
    failed = tuple(summary(number, failures=("ä" * 100,)) for number in range(200))
    text = github.summary(RunSummary(summaries=failed), limit)
    assert len(text.encode()) <= limit
    assert text == "" or text.endswith("\n\n")
    assert ("This summary is truncated" in text) == (100 <= limit < 100_000)
