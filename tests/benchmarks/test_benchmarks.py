"""The benchmarks of the harness: goals, the document that they write, and that they run at all."""

import logging
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import collect, logs, many_hosts
from benchmarks.section import Goal, Section, summary, table, timed
from benchmarks.simulated_hosts import SimulatedHosts


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
def test_collecting_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "SIZES", (1,))
    monkeypatch.setattr(collect, "PAIRS", 1)
    section = collect.measure()
    assert "| 100 | 299 |" in section.text
    assert "| 299 items |" in section.text


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


@pytest.mark.slow
def test_a_simulated_host_sends_what_the_real_one_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(many_hosts, "STEP_S", 0.1)
    monkeypatch.setattr(many_hosts, "CARDS", 2)
    many_hosts.set_up(tmp_path, monkeypatch.setenv)
    caplog.set_level(logging.DEBUG, "flagperf")
    with SimulatedHosts(tmp_path / "hosts", 2, 2) as hosts:
        round_ = many_hosts.run_round(tmp_path, hosts.settings.toml(), 2, many_hosts.CARDS)
    messages: dict[str, Counter[str]] = {"s0": Counter(), "s1": Counter()}
    for record in caplog.records:
        host, _, text = record.getMessage().partition(": ")
        of_life = text.endswith(("beat", "samples", "ping", "pong")) or "connected" in text
        # The first host is the only one without the code.
        if host in messages and not of_life and not text.startswith("put "):
            messages[host][text] += 1
    assert messages["s0"].pop("received perflog") > 2, "only rank 0 sends its records"
    assert messages["s1"] == messages["s0"]
    assert (messages["s1"]["received over"], messages["s1"]["received exit"]) == (1, 0)
    first, second = ({path.name for path in (round_ / f"s{number}_noderank{number}").iterdir()} for number in (0, 1))
    assert {re.sub(r"rank[23]\.", lambda own: f"rank{int(own[0][4]) - 2}.", name) for name in second} == first
