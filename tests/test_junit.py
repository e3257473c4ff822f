"""JUnit's properties and attachments."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest

from pytest_flagperf.report.export import junit
from pytest_flagperf.report.export.junit import attachments, properties
from pytest_flagperf.results.measured.validity import ValidityWarning
from tests.results_help import recorded, with_metric


def test_properties_are_pairs_of_text_with_unit_and_round() -> None:
    found = dict(properties([recorded("converged_1x2")]))
    assert float(found["round1.p_core[images/s]"]) == pytest.approx(3368.42, abs=0.01)
    assert found["target.top1"] == "0.900"
    assert found["environment.device"] == "a processor"
    assert len(properties([recorded("converged_1x2")])) == len(found)


def test_what_holds_for_the_case_stands_once_and_each_round_has_its_figures() -> None:
    first = recorded("converged_1x1")
    found = properties([first, replace(first, round=2, seed=7)])
    names = [name for name, _ in found]
    assert len(names) == len(set(names))
    assert names.count("case") == names.count("environment.device") == 1
    assert {"round1.seed", "round2.seed", "round1.p_core[images/s]", "round2.p_core[images/s]"} <= set(names)


@pytest.mark.parametrize(
    ("value", "said"),
    [(18.630643484000757, "18.6306"), (28800.0, "28800"), (34359738368.0, "34359738368"), (math.nan, "nan"), (0, "0")],
)
def test_figures_are_for_programs_with_no_more_digits_than_mean_something(value: float, said: str) -> None:
    found = dict(properties([with_metric(recorded("converged_1x2"), "p_core", value)]))
    assert found["round1.p_core[images/s]"] == said


def test_each_warning_has_its_own_property() -> None:
    outcome = replace(
        recorded("converged_1x1"),
        warnings=("one", "two"),
        validity_warnings=(ValidityWarning("throttled", "the clock was held back"),),
    )
    found = dict(properties([outcome]))
    assert [found["round1.warning1"], found["round1.warning2"]] == ["one", "two"]
    assert found["round1.validity_warning1"] == "the clock was held back"


def test_properties_can_stand_in_xml_and_json() -> None:
    outcome = replace(recorded("crashed_rank"), environment={"device": "a\x00b\x1b"})
    found = properties([outcome])
    assert all(type(name) is type(value) is str for name, value in found)
    assert ("environment.device", "a\\x00b\\x1b") in found
    assert json.dumps(found)
    assert [quoteattr(value) for _, value in found]


def test_the_logs_of_the_rank_that_failed_come_first_and_of_many_ranks_a_few() -> None:
    outcome = recorded("crashed_rank")
    assert outcome.failures[0].rank == 1
    many = replace(outcome, logs=tuple(f"localhost_noderank0/rank{rank}.out.log" for rank in range(64)))
    found = junit.logs(Path("/run"), [recorded("converged_1x2"), many])
    assert found[0].name == "rank1.out.log"
    assert found[0].parent == Path("/run") / many.directory / "localhost_noderank0"
    assert len(found) == junit.LOGS


def test_attachments_are_absolute_and_on_gitlab_below_the_project(tmp_path: Path) -> None:
    inside, outside = tmp_path / "project" / "a.log", tmp_path / "b.log"
    assert attachments([inside, outside], {}) == f"[[ATTACHMENT|{inside}]]\n[[ATTACHMENT|{outside}]]\n"
    gitlab = {"GITLAB_CI": "true", "CI_PROJECT_DIR": str(tmp_path / "project")}
    assert attachments([inside, outside], gitlab) == "[[ATTACHMENT|a.log]]\n"
