"""The index page of a folder of runs."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

from page_tests.test_page import ParsedPage
from pytest_flagperf.results.measured.validity import ValidityWarning
from tests.helpers.command_line import Capture, output_of
from tests.helpers.results_help import edit_json
from tests.helpers.stored_runs import Change, add_case, dated, faster, finish, history, run_of


def test_each_case_has_its_newest_run_and_its_trend(tmp_path: Path, capsys: Capture) -> None:
    runs = history(tmp_path / "reports")
    run_of(tmp_path / "reports" / "run20261120", "crashed_rank", dated(20, 1.0), model="other")
    run_of(tmp_path / "reports" / "run20261121", rounds=dated(1, 1.0), hardware="X9", vendor="acme")
    to = tmp_path / "reports" / "index.html"
    assert output_of(capsys, "report", "--all", tmp_path / "reports").splitlines() == [str(to)]
    html = to.read_text()
    text = ParsedPage(html).content
    assert "1 of 3 cases failed , 2 passed" in text
    assert "18 runs from 1970-01-01" in text
    assert 'href="run20261116/report.html#case-toy-pytorch-CPU-1-1-1"' in html, "the newest run of the case"
    assert 'href="run20261120/report.html#case-other-pytorch-CPU-1-2-1"' in html
    assert "toy:pytorch:CPU:1:1: p_core: 20.0 % lower from run20261111 (commit 000000000000) on" in text
    assert "p_core of 16 runs: from " in html
    assert html.count(": p_core over the runs") == 1, "only this case has a trend"
    assert "Hardware comparison" in text
    assert all((run / "report.html").is_file() for run in runs), "missing pages were written"


def test_runs_are_listed_with_the_newest_first_and_older_ones_are_folded(tmp_path: Path, capsys: Capture) -> None:
    for number in range(22):
        run_of(tmp_path / "reports" / f"run{number:02}", rounds=dated(number + 1, 1.0))
    output_of(capsys, "report", "--all", tmp_path / "reports", "--to", tmp_path / "site" / "all.html")
    html = (tmp_path / "site" / "all.html").read_text()
    listed = re.findall(r'<tr><td><a href="\.\./reports/(run\d+)/report.html">', html)
    assert listed == [f"run{number:02}" for number in reversed(range(22))]
    assert "2 older runs" in html
    assert html.count("<td class=name>1970-01-01 00:00</td>") == 22, "the first start of a run that was resumed"
    assert html.count('href="../reports/run05/results.json"') == 1


def test_runs_of_another_config_are_no_trend_and_damaged_runs_are_named(tmp_path: Path, capsys: Capture) -> None:
    for number, key in enumerate(("a", "b", "b")):
        run_of(tmp_path / f"run{number}", rounds=dated(number, 1.0), fingerprint={"key": key, "precision": key})
    add_case(tmp_path / "run3", "converged_1x1", faster(1.0), fingerprint={"key": "b", "precision": "b"})
    edit_json(finish(tmp_path / "run3") / "results.json", run=3)
    output_of(capsys, "report", "--all", tmp_path)
    text = ParsedPage((tmp_path / "index.html").read_text()).content
    assert "run3/results.json" in text
    assert "p_core of 3 runs" in (tmp_path / "index.html").read_text(), "without that of the other config"


def test_runs_of_two_machines_are_told_apart(tmp_path: Path, capsys: Capture) -> None:
    invalid = (ValidityWarning("busy", "h1: a rank waited"),)
    for number, facts in enumerate(({"chip": "X9 80G", "cpu": "Old"}, {"chip": "X9 80G"}, {"cpu": "Old & slow"})):
        rounds: list[Change] = [partial(replace, machine=facts, validity_warnings=invalid if number == 2 else ())]
        run_of(tmp_path / f"run{number}", rounds=rounds, model=f"toy{number}")
        output_of(capsys, "report", "--all", tmp_path)
        html = (tmp_path / "index.html").read_text()
        heads = [html.count(text) for text in ("<button>machine<", "<th>machine<", "<th>valid rounds<")]
        assert heads == [number // 2] * 3, "columns in which the rows differ"
    assert all(cells in ParsedPage(html).content for cells in ("X9 80G all", "Old & slow 0 of 1"))


def test_a_case_that_a_run_has_twice_is_listed_twice(tmp_path: Path, capsys: Capture) -> None:
    add_case(tmp_path / "run1", "converged_1x2", faster(1.0, 1.0))
    add_case(tmp_path / "run1", "crashed_rank")
    finish(tmp_path / "run1")
    output_of(capsys, "report", "--all", tmp_path)
    assert "1 of 2 cases failed , 1 passed" in ParsedPage((tmp_path / "index.html").read_text()).content
