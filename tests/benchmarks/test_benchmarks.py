"""The benchmarks of the harness: goals, the document that they write, and that they run at all."""

import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import collect, logs, many_hosts
from benchmarks.section import Goal, Section, summary, table, timed


def test_a_section_is_tables_and_goals_met_missed_or_missed_by_noise() -> None:
    most = [Goal("speed", 100, got, "ms", noise=0.1) for got in (100, 109, 111)]
    assert [goal.met for goal in most] == [True, False, False]
    assert [goal.missed for goal in most] == [False, False, True]
    judged = [goal.line.removeprefix("* speed: ") for goal in most]
    bound = "goal at most 100 ms"
    noisy = f"109 ms, {bound}: missed by less than its noise, 10%"
    assert judged == [f"100 ms, {bound}", noisy, f"111 ms, {bound}: **missed**"]
    assert summary(most) == f"1 of 3 goals are met. Missed:\n\n* speed: {judged[1]}\n* speed: {judged[2]}"
    least = [Goal("", 100, got, least=True, noise=0.1) for got in (100, 91, 89)]
    assert [goal.met for goal in least] == [True, False, False]
    assert [goal.missed for goal in least] == [False, False, True]
    section = Section([table(("a", "b"), [("1", "2")])], [Goal("speed", 5, 6)])
    assert section.text == "| a | b |\n| --- | --- |\n| 1 | 2 |\n\n* speed: 6, goal at most 5: **missed**"
    assert Section([table(("a", "b"), [("1", "2")])], []).text == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_the_documents_have_a_place_for_each_benchmark() -> None:
    text = benchmarks.DOCUMENT.read_text() + benchmarks.SUMMARY.read_text()
    for name in ("machine", "goals", *benchmarks.BENCHMARKS):
        changed = benchmarks.replace_between_markers(text, name, "| new |")
        assert f"<!-- {name} -->\n| new |\n<!-- end -->\n" in changed
        assert changed.count("<!--") == text.count("<!--")
        assert name in ("machine", "goals") or f"(`{name}`)\n" in text, f"no heading with {name}"
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
@pytest.mark.alone
def test_collecting_many_cases_costs_little_more_than_plain_pytest() -> None:
    goal, _ = collect.beside_plain(40, 3, "with the header")
    assert not goal.missed, goal.line


@pytest.mark.slow
def test_a_collection_that_costs_too_much_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "TEST", f"sum(range({10**8}))\n{collect.TEST}")
    goal, _ = collect.beside_plain(1, 1, "with the header")
    assert goal.missed


def test_the_share_of_the_square_is_that_of_the_curve() -> None:
    for square, share in ((0.0, 0.0), (1e-4, 0.47)):
        values = {hosts: 2.0 + 0.11 * hosts + square * hosts**2 for hosts in (16, 64, 256, 1024)}
        assert many_hosts.fit(values) == pytest.approx((2.0, 0.11, square), abs=1e-6)
        assert many_hosts.square_share(values, 1024) == pytest.approx(share, abs=0.01)
