"""The hooks of plugins: loading, calling, and clear errors that name the package."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_flagperf import hooks
from pytest_flagperf.commands import main
from pytest_flagperf.hooks.plugins import Answer, call
from pytest_flagperf.plugin.further_verdicts import of_plugins
from pytest_flagperf.plugin.pytest_html import write_pages
from pytest_flagperf.problems import Problems
from pytest_flagperf.results import Outcome, Verdict, load_runs
from pytest_flagperf.results.verdicts import VerdictKind, is_regression
from tests.helpers.plugin_packages import Site
from tests.helpers.stored_runs import run_of

ROOTS = "@hookimpl\ndef flagperf_roots():\n    return []\n"
EXPORTER = """
def write(runs, folder):
    {body}

@hookimpl
def flagperf_exporters():
    return [Exporter({name!r}, write)]
"""
Capture = pytest.CaptureFixture[str]


def problems() -> list[str]:
    with pytest.raises(Problems) as caught:
        hooks.installed_plugins()
    return caught.value.problems


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import no_such_module", "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        ("@hookimpl\ndef flagperf_verdict(rounds): pass", "unknown hook flagperf_verdict(); did you mean flagperf_ver"),
        ("@hookimpl\ndef flagperf_verdicts(outcome): pass", "Argument(s) {'outcome'} are declared in the hookimpl but"),
        ("def flagperf_roots(): return []", "flagperf_roots() lacks the decorator @hookimpl of pytest_flagperf.hooks"),
        ("", "it has no hook; the hooks are flagperf_"),
    ],
)
def test_an_invalid_plugin_is_a_sentence_that_names_the_package(site: Site, code: str, message: str) -> None:
    site.install(code)
    (problem,) = problems()
    assert problem.startswith("the installed made_maker 1.2: entry point made = 'made_maker' of flagperf: ")
    assert message in problem
    assert problem.endswith("; fix or uninstall the package")


def test_all_invalid_plugins_are_reported_at_once(site: Site) -> None:
    site.install("import no_such_module", "made_a", "a")
    site.install(ROOTS, "made_b", "b", version="")
    for package, version in (("made_c", "1.2"), ("made_d", "3")):
        site.install(ROOTS, package, "same", version)
    site.install(ROOTS, "made_e", "e")
    site.install(ROOTS, "made_f", "f", value="made_e")
    site.install(ROOTS, "made_g", "g.h")
    expected = [
        "entry point a = 'made_a' of flagperf: cannot be imported: ModuleNotFoundError",
        "the installed made_b: the package has no version in its metadata, and results record the versions of plugins",
        "plugin same exists twice: in the installed made_c 1.2 and in the installed made_d 3; uninstall one",
        "the installed made_f 1.2: entry point f = 'made_e' of flagperf: another entry point has the same plugin",
        "entry point g.h = 'made_g' of flagperf: expected a name of letters, digits, - and _",
    ]
    assert [words for words in expected if not any(words in problem for problem in problems())] == []
    assert len(problems()) == len(expected)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return [1]", "flagperf_roots() returned a list with 1; expected a list of str or Path"),
        ("return None", "flagperf_roots() returned None; expected a list"),
        ("1 / 0", "flagperf_roots() raised ZeroDivisionError: division by zero ("),
        ("yield 'a'; 1 / 0", "flagperf_roots() raised ZeroDivisionError: division by zero ("),
    ],
)
def test_a_hook_that_fails_does_not_affect_other_plugins(site: Site, body: str, message: str) -> None:
    site.install(f"@hookimpl\ndef flagperf_roots():\n    {body}\n", "made_a", "a")
    site.install("@hookimpl\ndef flagperf_roots():\n    yield '/x'\n", "made_b", "b")
    site.install("@hookimpl\ndef flagperf_exporters():\n    return []\n", "made_c", "c")
    first, second = call("flagperf_roots", str, Path)
    assert first.values == ()
    assert first.problem.startswith(f"the installed made_a 1.2: {message}")
    assert second == Answer(hooks.Plugin("b", "made_b", "1.2"), ("/x",))


def export(capsys: Capture, *arguments: object) -> tuple[int, str]:
    code = main(["export", *map(str, arguments)])
    output = capsys.readouterr()
    return code, output.err if code else output.out


def test_an_exporter_writes_files_of_each_run_or_of_all_runs(site: Site, tmp_path: Path, capsys: Capture) -> None:
    body = "(folder / 'in').mkdir(); (folder / 'in' / 'a.txt').write_text(' '.join(r.directory.name for r in runs))"
    site.install(EXPORTER.format(name="text", body=body))
    runs = [run_of(tmp_path / "runs" / name) for name in ("run1", "run2")]
    assert export(capsys, tmp_path / "runs", "--format=text") == (0, "".join(f"{run}/in/a.txt\n" for run in runs))
    assert [(run / "in" / "a.txt").read_text() for run in runs] == ["run1", "run2"]
    code, out = export(capsys, *runs, "--format=csv,text", "--to", tmp_path / "out")
    assert (code, out.split()) == (0, [f"{tmp_path}/out/{name}" for name in ("results.csv", "in/a.txt")])
    assert (tmp_path / "out" / "in" / "a.txt").read_text() == "run1 run2"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["in", "results.csv"]
    code, error = export(capsys, *runs, "--format=text", "--to", tmp_path / "out")
    assert code == 2
    assert f"{tmp_path}/out/in: already exists; choose another folder" in error


@pytest.mark.parametrize(
    ("body", "message"),
    [("(folder / 'a').write_text('a'); 1 / 0", "format text raised Zero"), ("pass", "format text wrote no file")],
)
def test_a_failed_exporter_leaves_no_file(site: Site, tmp_path: Path, capsys: Capture, body: str, message: str) -> None:
    site.install(EXPORTER.format(name="text", body=body))
    run = run_of(tmp_path / "run1")
    before = sorted(run.iterdir())
    code, error = export(capsys, run, "--format=text")
    assert code == 2
    assert error.startswith(f"flagperf: the installed made_maker 1.2: {message}")
    assert sorted(run.iterdir()) == before


def test_unknown_and_missing_formats_are_reported(site: Site, tmp_path: Path, capsys: Capture) -> None:
    run = run_of(tmp_path / "run1")
    assert export(capsys, run, "--format=text") == (
        2,
        "flagperf: --format=text: unknown format; choose from csv, parquet, markdown, huggingface\n",
    )
    site.install(EXPORTER.format(name="text", body="pass"))
    assert export(capsys, run, "--format=texts")[1].endswith("unknown format; did you mean text?\n")
    assert export(capsys, run, "--format=other")[1].endswith("choose from csv, parquet, markdown, huggingface, text\n")
    assert "--format=mlperf: pip install packages/mlperf" in export(capsys, run, "--format=mlperf")[1]


def test_names_of_formats_that_are_taken_or_invalid_are_reported(site: Site, tmp_path: Path, capsys: Capture) -> None:
    for number, name in enumerate(["csv", "two words", "text", "text"]):
        site.install(EXPORTER.format(name=name, body="pass"), f"made_{number}", f"plugin{number}")
    code, errors = export(capsys, run_of(tmp_path / "run1"), "--format=text")
    assert code == 2
    assert [line.partition("the name ")[2] for line in errors.splitlines()] == [
        "'csv' belongs to pytest-flagperf; fix or uninstall the package",
        "'two words' is invalid; expected letters, digits, - and _; fix or uninstall the package",
        "'text' is also used by the installed made_2 1.2; uninstall one of them",
    ]


COMMAND = """
import types
def module():
    made = types.ModuleType("made", "A command that was made.")
    made.add_arguments = lambda parser: parser.add_argument("word")
    made.run = lambda arguments: print(arguments.word) or 1
    return made

@hookimpl
def flagperf_commands():
    return [Command("{name}", module())]
"""


def test_a_package_adds_a_command_and_cannot_replace_one(site: Site, capsys: Capture) -> None:
    assert main(["watch"]) == 2
    assert capsys.readouterr().err.startswith("flagperf: watch is a package of its own; pip install")
    site.install(COMMAND.format(name="made"))
    assert main(["made", "word"]) == 1
    assert capsys.readouterr().out == "word\n"
    site.install(COMMAND.format(name="show"), "made_other", "other")
    assert main(["made", "word"]) == 2
    assert "flagperf_commands(): the name 'show' belongs to pytest-flagperf" in capsys.readouterr().err


def test_a_page_of_a_package_is_written_beside_ours_and_a_broken_one_is_noted(site: Site, tmp_path: Path) -> None:
    pages = '[Page("power", str, lambda folder, page: "watts"), Page("zero", str, lambda folder, page: 1 / 0)]'
    site.install(f"@hookimpl\ndef flagperf_pages():\n    return {pages}\n", "made_a", "a")
    records = SimpleNamespace(results="of the run", write_errors=[])
    run: Any = SimpleNamespace(directory=SimpleNamespace(path=tmp_path), records=records, notes=[])
    config: Any = SimpleNamespace(pluginmanager=SimpleNamespace(has_plugin=lambda _: False), getoption=lambda *_: None)
    write_pages(run, config)
    assert sorted(path.name for path in tmp_path.glob("*.html")) == ["power.html", "report.html"]
    assert (tmp_path / "power.html").read_text() == "watts"
    (note,) = run.notes
    assert note.startswith("the installed made_a 1.2: standalone() raised ZeroDivisionError")
    assert records.write_errors == []


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
    assert bad.sentence.startswith("the installed made_maker 1.2")
    assert message in bad.sentence
    assert bad.sentence.endswith("; fix or uninstall the package")
    assert good.ok
