"""flagperf history over stored runs: groups, table, marks, and the exit code."""

from __future__ import annotations

import io
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.commands import history as command
from pytest_flagperf.results.outcome import Outcome
from tests.stored_runs import Change, add_case, faster, run_of
from tests.test_commands import Capture, refused, said

CASE = "toy:pytorch:CPU:1:1"
FIRST = 1_700_000_000_000
DAY = 86_400_000
PRINT = {"suite_code": "s1", "driver_code": "d1", "key": "a"}
STEADY = (1.0, 1.02, 0.99, 1.01, 0.98, 1.0, 1.01, 0.99)


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def dated(change: Change, day: int) -> Change:
    return lambda outcome: replace(change(outcome), started_ms=FIRST + day * DAY)


def stored(root: Path, *factors: float, start: int = 0, rounds: int = 3, **plan: Any) -> list[Path]:
    """A run a day, each with rounds about its factor; names go the other way, since what counts is the day."""
    runs = []
    for day, factor in enumerate(factors, start):
        changes = faster(*(factor * (1 + 0.002 * each) for each in range(rounds)))
        told = {"fingerprint": PRINT, **plan}
        runs.append(run_of(root / f"run{90 - day}", rounds=[dated(change, day) for change in changes], **told))
    return runs


def test_steady_runs_are_a_table_of_80_columns_and_nothing_is_worse(tmp_path: Path, capsys: Capture) -> None:
    stored(tmp_path, *STEADY)
    out = said(capsys, "history", CASE, tmp_path)
    lines = out.splitlines()
    assert lines[0] == f"{CASE}: 8 runs, 2023-11-14 to 2023-11-21"
    assert lines[2].split() == ["run", "date", "(UTC)", "rounds", "p_core", "spread", "change"]
    rows = [line.split() for line in lines[3:11]]
    assert [row[0] for row in rows] == [f"run{90 - number}" for number in range(8)]
    assert rows[0][1:4] == ["2023-11-14", "22:13", "3"]
    assert rows[0][-1] == "-"
    assert rows[7][-2:] == ["-1.0", "%"]
    assert max(map(len, lines)) <= 80
    assert "  p_core in images/s  " in out
    assert out.count("newest: within noise: ") == 3
    assert lines[-1] == "the newest run is not worse"


def test_a_newest_run_beyond_noise_is_an_error(tmp_path: Path, capsys: Capture) -> None:
    runs = stored(tmp_path, *STEADY, 0.8)
    out = said(capsys, "history", f"{CASE}:3", *runs, code=1)
    assert out.splitlines()[-1].startswith("worse: run82: p_core (-20.")
    assert next(line for line in out.splitlines() if "run82" in line).endswith("worse")
    better = said(capsys, "history", CASE, *runs[:-1], *stored(tmp_path / "more", 1.2, start=8))
    assert "newest: better: " in better


def test_after_an_outlier_the_next_run_is_judged_as_if_it_had_not_been(tmp_path: Path, capsys: Capture) -> None:
    runs = stored(tmp_path, *STEADY, 0.5, 1.0)
    assert "newest: within noise" in said(capsys, "history", CASE, *runs)


def test_a_change_of_level_is_told_with_its_run(tmp_path: Path, capsys: Capture) -> None:
    runs = stored(tmp_path, *STEADY, *(factor * 0.8 for factor in STEADY))
    out = said(capsys, "history", CASE, *runs)
    assert "step: from " in out
    assert "(-20.0 %) with run82" in " ".join(out.split())
    drift = stored(tmp_path / "drift", *(1 - 0.01 * number + 0.003 * (-1) ** number for number in range(20)))
    words = " ".join(said(capsys, "history", CASE, *drift, code=1).split())
    assert "drift: from " in words
    assert "little by little from run90 to run71" in words


def test_too_few_runs_are_said_to_be_too_few(tmp_path: Path, capsys: Capture) -> None:
    out = said(capsys, "history", CASE, *stored(tmp_path, 1.0, 0.5))
    assert "newest: too few runs: 1 earlier run like this one; the noise is known from 5" in out
    assert out.endswith("too few runs to say whether the newest is worse\n")


def test_unlike_runs_stand_in_groups_that_say_what_differs(tmp_path: Path, capsys: Capture) -> None:
    stored(tmp_path, *STEADY, fingerprint={**PRINT, "suite_code": "s0", "key": "old"})
    stored(tmp_path, 0.5, start=8)
    out = said(capsys, "history", CASE, tmp_path)
    assert [line for line in out.splitlines() if line.startswith(CASE)] == [
        f"{CASE}: 8 runs, 2023-11-14 to 2023-11-21",
        f"{CASE}: 1 run, 2023-11-22",
    ]
    assert "  unlike the newest run: suite_code: s0 -> s1" in out
    across = said(capsys, "history", CASE, tmp_path, "--across=suite_code", code=1)
    assert f"{CASE}: 9 runs" in across
    assert "  from run82 on: suite_code: s0 -> s1" in across


def test_what_it_ran_on_may_differ_too_where_that_is_asked_for(tmp_path: Path, capsys: Capture) -> None:
    def on(driver: str, change: Change) -> Change:
        return lambda outcome: replace(change(outcome), machine={"driver": driver})

    for number, (driver, factor) in enumerate([("1.0", 1.0)] * 6 + [("2.0", 0.8)]):
        (change,) = faster(factor)
        run_of(tmp_path / f"run{number}", rounds=[dated(on(driver, change), number)], fingerprint=PRINT)
    assert "  unlike the newest run: driver: 1.0 -> 2.0" in said(capsys, "history", CASE, tmp_path)
    across = said(capsys, "history", CASE, tmp_path, "--across=driver", code=1)
    assert "  from run6 on: driver: 1.0 -> 2.0" in across


def test_a_newest_run_of_which_nothing_ended_well_is_worse(tmp_path: Path, capsys: Capture) -> None:
    def died(outcome: Outcome) -> Outcome:
        return replace(outcome, state="failed", started_ms=FIRST + 99 * DAY)

    runs = stored(tmp_path, *STEADY)
    runs.append(run_of(tmp_path / "run1", rounds=[died], fingerprint=PRINT))
    out = said(capsys, "history", CASE, *runs, code=1)
    assert "worse: run1: none of 1 round ended well" in out
    assert "x\n" in out


def test_a_metric_of_ones_own_and_its_direction(tmp_path: Path, capsys: Capture) -> None:
    out = said(capsys, "history", CASE, *stored(tmp_path, *STEADY), "--metric=e2e_time", "--metric=p_whole")
    assert "rounds  e2e_time  spread" in out
    assert "  p_whole in images/s  " in out
    assert "p_core" not in out


def test_a_copied_run_counts_once(tmp_path: Path, capsys: Capture) -> None:
    runs = stored(tmp_path / "runs", *STEADY)
    shutil.copytree(runs[3], tmp_path / "copy")
    assert f"{CASE}: 8 runs" in said(capsys, "history", CASE, tmp_path / "runs", tmp_path / "copy")


def test_a_long_history_shows_its_end(tmp_path: Path, capsys: Capture) -> None:
    runs = stored(tmp_path, *STEADY * 3, rounds=1)
    out = said(capsys, "history", CASE, *runs)
    assert "the last 20 of 24 runs; --all shows all" in out
    assert "run90 " not in out
    assert "run90 " in said(capsys, "history", CASE, *runs, "--all")


def test_what_is_not_there_is_told(tmp_path: Path, capsys: Capture) -> None:
    runs = stored(tmp_path, 1.0)
    assert "did you mean toy:pytorch:CPU:1:1?" in refused(capsys, "history", "toy:pytorch:CPU:1:2", *runs)[0]
    assert "(there is toy:pytorch:CPU:1:1)" in refused(capsys, "history", "x", *runs)[0]
    lines = refused(capsys, "history", CASE, *runs, "--metric=p_cor", "--across=suite")
    assert len(lines) == 2
    assert "did you mean p_core?" in lines[0]
    assert "--across=suite: no fingerprint and no machine has it" in lines[1]


def test_the_trees_reports_are_looked_at_and_what_cannot_be_read_does_not_stop_it(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path / "reports", *STEADY)
    case_dir = add_case(tmp_path / "reports" / "run99", "converged_1x1")
    (case_dir / "round1" / "outcome.json").write_text("{", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    out = said(capsys, "history", CASE)
    assert f"{CASE}: 8 runs" in out
    assert "outcome.json: is not JSON" in out


def test_runs_of_which_no_file_says_when_go_by_name_before_the_others(tmp_path: Path, capsys: Capture) -> None:
    runs = stored(tmp_path, 1.0, 1.0)
    for number in (2, 1):
        timeless = [lambda one: replace(one, started_ms=None)]
        run_dir = run_of(tmp_path / f"old{number}", rounds=timeless, fingerprint=PRINT)
        body = json.loads((run_dir / "results.json").read_text())
        body["run"]["started_ms"] = None
        (run_dir / "results.json").write_text(json.dumps(body))
        runs.append(run_dir)
    lines = said(capsys, "history", CASE, *runs).splitlines()
    assert [line.split()[0] for line in lines[3:7]] == ["old1", "old2", "run90", "run89"]
    assert "date not known" in lines[3]


def test_a_sparkline_has_a_sign_for_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert command.sparkline([1.0, 2.0, None, 8.0]) == "▁▂x█"
    assert command.sparkline([3.0, 3.0]) == "▁▁"
    assert command.sparkline([]) == ""
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    assert command._bars().isascii()


def test_the_page_has_the_trend_the_level_and_every_run(tmp_path: Path, capsys: Capture) -> None:
    stored(tmp_path / "runs", *STEADY, fingerprint={**PRINT, "suite_code": "s0", "key": "old"}, start=-20)
    stored(tmp_path / "runs", *STEADY, *(factor * 0.8 for factor in STEADY))
    out = said(capsys, "history", CASE, tmp_path / "runs", "--html", tmp_path / "history.html")
    assert f"note: the page is {tmp_path / 'history.html'}" in out
    page = (tmp_path / "history.html").read_text()
    assert "<p>the newest run is not worse</p>" in page
    assert page.index("<h2>16 runs: ") < page.index("<h2>8 runs: ")
    assert "unlike the newest run: suite_code: s0 -&gt; s1" in page
    assert "step: from " in page
    for told in ("<figcaption>p_core over the runs", '"first after a change"', '"level"', '"worse"', "run75"):
        assert told in page


def test_the_page_of_a_lone_run_is_made_all_the_same(tmp_path: Path, capsys: Capture) -> None:
    said(capsys, "history", CASE, *stored(tmp_path, 1.0), "--html", tmp_path / "history.html")
    assert "too few runs to say" in (tmp_path / "history.html").read_text()
