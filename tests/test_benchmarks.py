"""The benchmarks of the harness: goals, the document that they write, and that they run at all."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import collect, logs
from benchmarks.section import Goal, Section, table, timed
from tests.plugin.conftest import Toy
from tests.plugin.conftest import toy as toy  # a fixture


def test_a_section_is_tables_and_goals_met_missed_or_missed_by_noise() -> None:
    most = [Goal("", 100, got, "ms", noise=0.1) for got in (100, 109, 111)]
    assert [goal.met for goal in most] == [True, False, False]
    assert [goal.missed for goal in most] == [False, False, True]
    assert [goal.row[3] for goal in most] == ["met", "missed by less than its noise, 10%", "**missed**"]
    assert most[0].row[:3] == ("", "at most 100 ms", "100 ms")
    least = [Goal("", 100, got, least=True, noise=0.1) for got in (100, 91, 89)]
    assert [goal.met for goal in least] == [True, False, False]
    assert [goal.missed for goal in least] == [False, False, True]
    section = Section([table(("a", "b"), [("1", "2")])], [Goal("speed", 5, 6)])
    assert section.text == (
        "| a | b |\n| --- | --- |\n| 1 | 2 |\n\n"
        "| goal | bound | measured |  |\n| --- | --- | --- | --- |\n| speed | at most 5 | 6 | **missed** |"
    )
    assert Section([table(("a", "b"), [("1", "2")])], []).text == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_the_document_has_a_place_for_each_benchmark() -> None:
    text = benchmarks.DOCUMENT.read_text()
    for name in ("machine", *benchmarks.BENCHMARKS):
        changed = benchmarks.replace_between_markers(text, name, "| new |")
        assert f"<!-- {name} -->\n| new |\n<!-- end -->\n" in changed
        assert changed.count("<!--") == text.count("<!--")
        assert name == "machine" or f"(`{name}`)\n" in text, (
            f"expected {name} in a heading, for python -m benchmarks {name}"
        )
    with pytest.raises(SystemExit, match="expected the lines <!-- nothing --> and <!-- end -->"):
        benchmarks.replace_between_markers(text, "nothing", "")


def test_a_command_that_fails_ends_the_benchmark(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no such thing"):
        timed([sys.executable, "-c", "raise SystemExit('no such thing')"], tmp_path)


def test_reading_logs_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MEGABYTES", 2)
    slowest, memory = logs.measure().goals
    assert slowest.got > 0
    assert not memory.missed


@pytest.mark.slow
def test_collecting_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "SIZES", (1,))
    monkeypatch.setattr(collect, "PAIRS", 1)
    section = collect.measure()
    assert "| 100 | 299 |" in section.text
    assert "| 299 items |" in section.text


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("output", collect.OUTPUTS)
def test_collecting_many_cases_costs_little_more_than_plain_pytest(output: str) -> None:
    goal, _ = collect.beside_plain(100, 3, output)
    assert not goal.missed, goal.row


@pytest.mark.slow
def test_a_collection_that_costs_too_much_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "TEST", f"sum(range({10**8}))\n{collect.TEST}")
    goal, _ = collect.beside_plain(1, 1, "with the header")
    assert goal.missed


AUDITED = """
import atexit, json, sys
started = []
sys.addaudithook(lambda event, details: started.append(str(details[1])) if event == "subprocess.Popen" else None)
atexit.register(lambda: open("started.json", "w").write(json.dumps(started)))
"""


@pytest.mark.slow
def test_a_further_round_on_this_machine_starts_one_process(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    (toy.root / "audited.py").write_text(AUDITED)
    monkeypatch.setenv("PYTHONPATH", str(toy.root), prepend=":")
    monkeypatch.setenv("PYTEST_PLUGINS", "quiet_machine,audited")
    counts = []
    for rounds in (1, 3):
        result = toy.run("suites/alpha", "-k", "converges", "--nodes=1x1", f"--repeat={rounds}")
        assert result.ret == 0
        started = json.loads((toy.root / "started.json").read_text())
        counts.append(len([command for command in started if "git" not in command]))
    assert counts[0] > 0
    assert counts[1] - counts[0] == 2, "expected one agent for each further round"
    assert counts[0] <= 4, "expected uname, the look at the interpreter, preflight and one agent"
