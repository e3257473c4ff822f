"""Verdicts by plugins: their names, and errors that do not lose the run."""

from pathlib import Path

import pytest

from pytest_flagperf.plugin.further_verdicts import of_plugins
from pytest_flagperf.results import Outcome, Verdict, load_runs
from pytest_flagperf.results.verdicts import VerdictKind, is_regression
from tests.helpers.plugin_packages import Site
from tests.helpers.stored_runs import run_of

LABEL = "the installed made_maker 1.2"
VERDICTS = "@hookimpl\ndef flagperf_verdicts(rounds):\n    {body}\n"


@pytest.fixture
def rounds(tmp_path: Path) -> tuple[Outcome, ...]:
    (run,) = load_runs(run_of(tmp_path / "run1"))
    return run.cases[0].outcomes


def test_a_verdict_gets_the_name_of_its_plugin_and_its_kind(site: Site, rounds: tuple[Outcome, ...]) -> None:
    assert of_plugins(rounds) == []
    site.install(VERDICTS.format(body="return [Verdict('target', True, r.case, 'a case') for r in rounds]"))
    site.install(VERDICTS.format(body="yield Verdict('target', False, '1', '2', 'got 1')"), "made_b", "other")
    first, second = of_plugins(rounds)
    assert first == Verdict("made.target", True, rounds[0].case, "a case", kind=VerdictKind.PLUGIN)
    assert (second.name, second.ok) == ("other.target", False)
    assert not is_regression([second])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("1 / 0", "flagperf_verdicts() raised ZeroDivisionError: division by zero ("),
        ("return None", "flagperf_verdicts() returned None; expected a list of Verdict"),
        ("return [True]", "flagperf_verdicts() returned a list with True; expected a list of Verdict"),
        ("return [Verdict('a', 1, '', '')]", "ok is 1; expected true or false"),
        ("return [Verdict('a', False, '', '')]", "expected a sentence, because the verdict failed"),
        ("return [Verdict('a', False, '', '', 'b', 'known')]", "expected no kind and no expected_failure"),
        ("rounds[0].case = 'x'", "flagperf_verdicts() raised FrozenInstanceError"),
    ],
)
def test_a_plugins_error_is_a_failed_verdict(site: Site, rounds: tuple[Outcome, ...], body: str, message: str) -> None:
    site.install(VERDICTS.format(body=body))
    site.install(VERDICTS.format(body="yield Verdict('good', True, '', '')"), "made_b", "other")
    bad, good = of_plugins(rounds)
    assert (bad.name, bad.ok, bad.kind) == ("made", False, VerdictKind.PLUGIN)
    assert bad.sentence.startswith(LABEL)
    assert message in bad.sentence
    assert bad.sentence.endswith("; fix or uninstall the package")
    assert good.ok
