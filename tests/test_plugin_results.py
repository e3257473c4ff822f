"""Verdicts and sections of the page by plugins: their names, and errors that lose neither the run nor the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_flagperf.commands import main
from pytest_flagperf.plugin.further_verdicts import of_plugins
from pytest_flagperf.report.page import page
from pytest_flagperf.results import Outcome, Verdict, load_runs
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.verdicts import VerdictKind, is_regression

from .plugin_packages import Site
from .stored_runs import run_of

LABEL = "the installed made_maker 1.2"
VERDICTS = "@hookimpl\ndef flagperf_verdicts(rounds):\n    {body}\n"
SECTIONS = "@hookimpl\ndef flagperf_sections(run):\n    {body}\n"


@pytest.fixture
def rounds(tmp_path: Path) -> tuple[Outcome, ...]:
    (run,) = load_runs(run_of(tmp_path / "run1"))
    return run.cases[0].outcomes


# -- verdicts --------------------------------------------------------------------------------------------------


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
        ("return [Verdict('a', 1, '', '')]", "ok is 1; expected bool"),
        ("return [Verdict('a', False, '', '')]", "expected a sentence, because the verdict failed"),
        ("return [Verdict('a', False, '', '', 'b', 'known')]", "expected no kind and no expected_failure"),
        ("rounds[0].case = 'x'", "flagperf_verdicts() raised FrozenInstanceError"),
    ],
)
def test_an_error_of_a_plugin_is_a_failed_verdict(
    site: Site, rounds: tuple[Outcome, ...], body: str, message: str
) -> None:
    site.install(VERDICTS.format(body=body))
    site.install(VERDICTS.format(body="yield Verdict('good', True, '', '')"), "made_b", "other")
    bad, good = of_plugins(rounds)
    assert (bad.name, bad.ok, bad.kind) == ("made", False, VerdictKind.PLUGIN)
    assert bad.sentence.startswith(LABEL)
    assert message in bad.sentence
    assert bad.sentence.endswith("; fix or uninstall the package")
    assert good.ok


def test_stored_verdicts_of_plugins_are_read_without_the_plugin(rounds: tuple[Outcome, ...], tmp_path: Path) -> None:
    verdict = Verdict("gone.power", False, "700 W", "at most 650 W", "too much power", kind=VerdictKind.PLUGIN)
    case_dir = tmp_path / "run1" / rounds[0].directory.parent
    store.save_verdicts(case_dir, "test_plugins", [verdict])
    (run,) = load_runs(tmp_path / "run1")
    assert run.cases[0].verdicts["test_plugins"] == (verdict,)
    assert "too much power" in page.body(run.directory, tmp_path)


# -- sections --------------------------------------------------------------------------------------------------


def test_a_section_is_at_the_end_of_the_page_and_its_texts_are_escaped(site: Site, tmp_path: Path) -> None:
    body = (
        "return [Section('A <b>', ['x < y', Table(['case', '<n>'], [[c.case, 3.0] for c in run.cases]), Html('<hr>')])]"
    )
    site.install(SECTIONS.format(body=body))
    run = run_of(tmp_path / "run1")
    case = load_runs(run)[0].cases[0].case
    text = page.standalone(run, run / "report.html")
    head = '<h2 id="plugin-made-1">A &lt;b&gt; <small>from made_maker 1.2</small></h2><p>x &lt; y</p>'
    _, _, section = text.partition(head)
    assert section.split("</main>")[0] == (
        '<div class="wide" tabindex="0"><table><thead><tr><th>case</th><th class=number>&lt;n&gt;</th></tr></thead>'
        f"<tbody><tr><td>{case}</td><td class=number>3</td></tr></tbody></table></div><hr>"
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("1 / 0", "flagperf_sections() raised ZeroDivisionError: division by zero ("),
        ("return ['text']", "flagperf_sections() returned a list with &#x27;text&#x27;; expected a list of Section"),
        ("return [Section('')]", "the title is &#x27;&#x27;; expected a text"),
        ("return [Section('A', [3])]", "the content has 3; expected a text, Table or Html"),
        (
            "return [Section('A', [Table(['a'], [['b', 'c']])])]",
            "a row is [&#x27;b&#x27;, &#x27;c&#x27;]; expected 1 ce",
        ),
    ],
)
def test_an_error_of_a_plugin_is_shown_in_the_page(site: Site, tmp_path: Path, body: str, message: str) -> None:
    run = run_of(tmp_path / "run1")
    before = page.body(run, run)
    site.install(SECTIONS.format(body=body))
    site.install(SECTIONS.format(body="yield Section('Good')"), "made_b", "other")
    text = page.body(run, run)
    begin, _, added = text.partition('<p class="bad">the installed made_maker 1.2')
    assert begin == before.removesuffix("</main>")
    assert message in added
    assert '<h2 id="plugin-other-1">Good ' in added


def test_a_page_with_a_plugin_that_cannot_be_loaded_is_refused(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(tmp_path / "run1")
    site.install("import no_such_module")
    assert main(["report", str(run)]) == 2
    assert capsys.readouterr().err.startswith(
        f"flagperf: {LABEL}: entry point made = 'made_maker' of flagperf: cannot be"
    )
    assert not (run / "report.html").exists()
