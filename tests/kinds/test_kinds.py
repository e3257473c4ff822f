"""Kinds of suites: how they are found, and what a stored run of an unknown kind says."""

import subprocess
import sys
from dataclasses import replace

import pytest

from docsite.reference import pages
from pytest_flagperf.benchmark import Benchmark
from pytest_flagperf.kind import criteria, kind_named, kinds, markers
from pytest_flagperf.problems import Problems
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts.case_result import CaseResult, not_judged, summarize_case
from pytest_flagperf.running.judging import _unknown_verdict
from pytest_flagperf.stored import FormatError
from pytest_flagperf_page.failures import advice
from tests.helpers.plugin_packages import Site
from tests.helpers.results_help import recorded

KIND = """
from pytest_flagperf.kinds import Criterion, MeasurementKind
def grows(rounds):
    return [Verdict("grows copy", one.ok, "16 GB/s", "20 GB/s", "copy fell") for one in rounds]
class Made(MeasurementKind):
    name = "{name}"
    criteria = (*MeasurementKind.criteria, Criterion("grows", "no size is slower than the one before", grows))
@hookimpl
def flagperf_kinds():
    return [Made()]
"""


def test_a_package_brings_a_kind_and_all_of_a_verdict_follows_from_its_criterion(site: Site) -> None:
    assert "grows" not in criteria()
    site.install(KIND.format(name="made"))
    assert [*kinds()] == ["training", "measurement", "made", "serving"]

    class TestMade(Benchmark):
        kind = "made"

    tests = [name for name in vars(TestMade) if name.startswith("test_")]
    assert tests == ["test_measured", "test_reaches", "test_uniform", "test_grows"]
    assert markers()["grows"] == "no size is slower than the one before"
    assert _unknown_verdict("grows *", ()) == ""
    assert _unknown_verdict("grow", ()) == "unknown verdict; did you mean grows?"
    assert "| `grows` | `test_grows` | no size is slower than the one before |" in pages()["reference/verdicts"]
    outcome = replace(recorded("crashed_rank"), kind="made", figures=(), failures=())
    criterion = kind_named("made").criterion("test_grows[gamma:plain:CPU:1:1:1]")
    assert criterion is not None
    (verdict,) = criterion.verdicts_on([outcome])
    assert (verdict.name, verdict.ok, verdict.kind) == ("grows copy", False, "grows")
    case = CaseResult(outcome.case, (outcome,), {"test_grows": (verdict,)})
    assert summarize_case(case).short == ("grows copy 16 GB/s, expected 20 GB/s",)
    assert advice(case).startswith("look at the devices and hosts in its section")
    unknown = CaseResult(outcome.case, (outcome,), {"test_grows": (replace(verdict, ok=True, judged=False),)})
    assert not_judged([summarize_case(unknown)]) == ["1 grows not judged"]


def test_a_package_cannot_replace_a_kind(site: Site) -> None:
    site.install(KIND.format(name="training"))
    with pytest.raises(Problems, match=r"made_maker 1\.2: .*'training' belongs to pytest-flagperf"):
        kinds()
    assert kind_named("training").name == "training", "runs of our own kinds are not affected"


def test_a_stored_round_of_an_unknown_kind_is_refused_and_one_without_a_kind_is_a_training() -> None:
    body = recorded("converged_1x1").to_json()
    unknown = (
        r"outcome: kind 'cooking' is unknown: install the package that has it; the kinds are training, measurement"
    )
    with pytest.raises(FormatError, match=unknown):
        Outcome.from_json({**body, "kind": "cooking"})
    outcome = Outcome.from_json({name: value for name, value in body.items() if name != "kind"})
    assert (outcome.kind, outcome.main, outcome.judged) == ("training", "p_core", ("p_whole", "p_train", "p_core"))


def test_finding_the_kinds_loads_neither_reports_nor_results() -> None:
    code = "import sys; from pytest_flagperf.kind import kinds; kinds(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    parts = {f"pytest_flagperf.{part}" for part in ("report", "results", "running", "plan", "config")}
    assert parts.intersection(done.stdout.split()) == set()
