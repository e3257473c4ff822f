"""Kinds of suites: how they are found, and what a stored run of an unknown kind says."""

import subprocess
import sys

import pytest

from pytest_flagperf.kind import kind_named, kinds
from pytest_flagperf.problems import Problems
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.running.judging import _unknown_verdict
from pytest_flagperf.stored import FormatError
from tests.helpers.plugin_packages import Site
from tests.helpers.results_help import recorded

KIND = """
from pytest_flagperf.kinds import MeasurementKind
class Made(MeasurementKind):
    name = "{name}"
    verdicts = ("grows",)
@hookimpl
def flagperf_kinds():
    return [Made()]
"""


def test_a_package_brings_a_kind(site: Site) -> None:
    site.install(KIND.format(name="made"))
    assert [*kinds()] == ["training", "measurement", "made"]
    assert kind_named("made").judges() == kind_named("measurement").judges() != {}
    assert _unknown_verdict("grows *", ()) == ""
    assert _unknown_verdict("grow", ()) == "unknown verdict; did you mean grows?"


def test_a_package_cannot_replace_a_kind(site: Site) -> None:
    site.install(KIND.format(name="training"))
    with pytest.raises(Problems, match=r"made_maker 1\.2: .*'training' belongs to pytest-flagperf"):
        kinds()
    assert kind_named("training").name == "training", "runs of our own kinds are not affected"


def test_a_stored_round_of_an_unknown_kind_is_refused_and_one_without_a_kind_is_a_training() -> None:
    body = recorded("converged_1x1").to_json()
    unknown = (
        r"outcome: kind 'serving' is unknown: install the package that has it; the kinds are training, measurement"
    )
    with pytest.raises(FormatError, match=unknown):
        Outcome.from_json({**body, "kind": "serving"})
    outcome = Outcome.from_json({name: value for name, value in body.items() if name != "kind"})
    assert (outcome.kind, outcome.main, outcome.judged) == ("training", "p_core", ("p_whole", "p_train", "p_core"))


def test_finding_the_kinds_loads_neither_reports_nor_results() -> None:
    code = "import sys; from pytest_flagperf.kind import kinds; kinds(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    parts = {f"pytest_flagperf.{part}" for part in ("report", "results", "running", "plan", "config")}
    assert parts.intersection(done.stdout.split()) == set()
