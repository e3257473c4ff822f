"""The parts of a page that compare and explain (machine, rounds, failures), the index page, and changes over runs."""

import random
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from page_tests.test_page import HOSTILE, ParsedPage, of
from pytest_flagperf.kinds.training import verdicts as training_verdicts
from pytest_flagperf.results.figures import noise
from pytest_flagperf.results.figures.kinds import FIGURES
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.measured.validity import ValidityWarning
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.verdicts import OneCard, Verdict
from pytest_flagperf.results.verdicts.case_result import CaseResult, summarize_case
from pytest_flagperf_page import change_points, comparisons, page
from pytest_flagperf_page.failures import excerpts
from pytest_flagperf_page.headline import headline
from pytest_flagperf_page.rows import Row, row_of
from tests.helpers.command_line import Capture, output_of
from tests.helpers.results_help import edit_json, recorded, with_metric
from tests.helpers.stored_runs import INFO, Change, add_case, dated, faster, finish, history, run_of


def row(*outcomes: Outcome, one_card: float | None = None, verdicts: Sequence[Verdict] = ()) -> Row:
    card = None if one_card is None else OneCard(one_card, "this run")
    result = CaseResult(outcomes[0].case, outcomes, {"test": tuple(verdicts)} if verdicts else {}, card)
    return row_of(result, summarize_case(result))


def text_of(html: str) -> str:
    parsed = ParsedPage(html)
    assert parsed.open == []
    return parsed.content


def test_the_machine_is_at_the_top_with_its_software(tmp_path: Path) -> None:
    machine = {
        "chip": "acme A1", "chip_memory": "81920 MiB", "driver": "575.51", "cpu": "a processor", "sockets": "2",
        "cores": "64", "memory": "1 TiB", "image": "example/image@sha256:1", "python": "3.11.7", "commit": "abc123",
    }  # fmt: skip
    add_case(tmp_path, "converged_1x1", [partial(replace, machine=machine)])
    text = of(finish(tmp_path)).content
    top = text[: text.index("Overview")]
    for expected in (
        "Chip acme A1, 81920 MiB", "Driver 575.51", "CPU a processor, sockets: 2, cores: 64", "Host memory 1 TiB",
        "Framework pytorch 2.9.1", "example/image@sha256:1, Python 3.11.7", "Commit abc123", "up to 1 host x 1 device",
    ):  # fmt: skip
        assert expected in top, expected
    assert "Power limit" not in top, "unknown facts are left out"


def test_facts_and_packages_that_differ_between_cases_are_listed_once(tmp_path: Path) -> None:
    torch, numpy = {"version torch": ["2.11.0", "==2.15.0"]}, {"version numpy": ["2.3.0", "==2.4.6"]}
    for driver, versions in (("1.0", {**torch, **numpy}), ("2.0", torch)):
        fingerprint = {"key": "a", "deviations": {"width": [1, 2], **versions}}
        change = partial(replace, machine={"driver": driver}, fingerprint=fingerprint)
        add_case(tmp_path, "converged_1x1", [change], model=f"of{driver}")
    text = of(finish(tmp_path)).content
    assert "Driver 1.0; 2.0" in text
    assert "Other versions torch 2.11.0 (required: ==2.15.0); numpy 2.3.0 (required: ==2.4.6) " in text


def test_each_case_has_a_command_with_its_data_and_settings(tmp_path: Path) -> None:
    setting = {"value": 7, "file": "--set batch=7", "line": 0, "layer": "setting"}
    data = {"value": "/data/my glm", "file": "case", "line": 0, "layer": "case"}
    add_case(tmp_path, "converged_1x1", values={"data_dir": data, "batch": setting})
    text = of(finish(tmp_path)).content
    expected = "pytest suites --vendor=cpu '--case=toy:pytorch:CPU:1:1:1=/data/my glm' --scale=small --set=batch=7 copy"
    assert f"Run this case again: {expected}" in text


def on_two_cards(factor: float, number: int, *, valid: bool) -> Outcome:
    """A round that is so many times as fast as one card's 1,000 images/s."""
    warnings = () if valid else (ValidityWarning("busy", "h1: a rank waited for a core in 40.0 % of the training"),)
    outcome = with_metric(recorded("converged_1x2"), "p_core", 1000.0 * factor)
    return replace(outcome, round=number, validity_warnings=warnings)


PASSED = (Verdict("finished", True, "finished", "finished", "round 1 finished"),)


@pytest.mark.parametrize(("valid", "in_headline"), [(1, False), (3, True)])
def test_one_set_of_rounds_gives_the_throughput_and_the_speed_up(valid: int, in_headline: bool) -> None:
    rounds = [on_two_cards(1.7 if number <= valid else 0.9, number, valid=number <= valid) for number in range(1, 6)]
    of_case = row(*rounds, one_card=1000.0, verdicts=PASSED)
    assert (of_case.main.median, of_case.speedup, len(of_case.values)) == (1700.0, 1.7, valid)
    assert ("is 1.70 times as fast as on one" in headline([of_case])) == in_headline, "few rounds prove nothing"
    assert f"{5 - valid} of 5 rounds not valid" in text_of(headline([of_case]))
    invalid = row(*(replace(one, validity_warnings=rounds[-1].validity_warnings) for one in rounds), one_card=1000.0)
    assert len(invalid.values) == 5, "without a valid round, all count"


def test_a_case_without_a_valid_round_does_not_look_good() -> None:
    good, bad = (row(on_two_cards(1.7, 1, valid=valid), verdicts=PASSED) for valid in (True, False))
    html = headline([good, bad, bad])
    assert 'class="headline failed-as-expected"' in html
    assert "figures not valid in 2 cases" in html
    assert "figures not valid: " in text_of(html)
    assert text_of(html).count("a rank waited for a core in 40.0 %") == 1, "what cases share is said once"
    assert 'class="headline passed"' in headline([good]), "the control"


def test_a_long_headline_is_folded(tmp_path: Path) -> None:
    add_case(tmp_path, "converged_1x1")
    for number, folded in ((12, False), (13, True)):
        missing = tuple(f"model{one}:pytorch:CPU:1:2:1: not started" for one in range(number))
        html = page.body(finish(tmp_path, replace(INFO, not_run=missing)), tmp_path)
        top = html[: html.index('id="machine"')]
        assert top.count("<li>not run: ") == number
        assert ("3 more lines" in top) == folded


def test_some_failed_cases_are_open_and_a_failure_of_all_rounds_appears_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same: list[Change] = [lambda outcome: outcome] * 3
    add_case(tmp_path, "nan_loss", same)
    add_case(tmp_path, "converged_1x1", model="good")
    html = page.body(finish(tmp_path), tmp_path)
    opened = re.findall(r'<details class="case" id="([^"]*)"[^>]* open>', html)
    assert len(opened) == 1
    assert opened[0].startswith("case-toy")
    section = html[html.index(f'id="{opened[0]}"') :]
    assert section.count("the loss was NaN at step 120") == 1
    assert "rounds 1, 2, 3: the loss was NaN" in section
    monkeypatch.setattr(page, "_MAX_OPEN", 0)
    assert not re.search(r'<details class="case" [^>]* open>', page.body(tmp_path, tmp_path))


def test_a_crash_is_one_failure_and_a_missed_target_lists_the_value_of_each_round(tmp_path: Path) -> None:
    add_case(tmp_path, "crashed_rank")
    html = page.body(finish(tmp_path), tmp_path)
    section = html[html.index('<details class="case"') :]
    assert section.count("ended with exit code 1") == 1
    assert section.count('<span class="state failed">') == 2, "of the case, and of its failure"
    case_dir = add_case(tmp_path, "converged_1x1", faster(1.0, 1.0))
    for number, got in ((1, "0.5"), (2, "0.6")):
        verdict = Verdict("target", False, got, "top1 >= 0.9", f"round {number}: top1 reached {got}")
        store.save_verdicts(case_dir, f"test_more{number}", [verdict])
    text = of(finish(tmp_path)).content
    assert "rounds 1, 2: top1 reached 0.5 target: got 0.5 (round 1); target: got 0.6 (round 2); expected top1" in text


def test_a_case_begins_with_the_rate_of_the_whole_training_and_figures_have_their_meaning(tmp_path: Path) -> None:
    add_case(tmp_path, "converged_1x1")
    text = of(finish(tmp_path)).content
    assert f"p_core {FIGURES['p_core'].meaning} 1,684 images/s" in text
    assert re.search(r"p_whole [0-9,]+ images/s steps alone: p_core 1,684 images/s", text), "beside the case's name"
    assert text.index(FIGURES["p_whole"].meaning) < text.index(FIGURES["p_core"].meaning), "in its figures"


def test_each_round_is_a_dot_around_the_median(tmp_path: Path) -> None:
    rounds = [change(recorded("converged_1x1")) for change in faster(0.98, 1.0, 1.04)]
    html = comparisons.distribution([row(*rounds)])
    places = re.findall(r'<b style="left:([0-9.]+)%">', html)
    assert [round(float(place)) for place in places] == [26, 50, 98]
    text = text_of(html)
    assert "rounds, from -4.0 % to +4.0 % of the median" in text
    assert "95 % confidence interval of the mean" in text
    assert comparisons.distribution([row(recorded("converged_1x1"))]) == ""


def test_the_trend_has_valid_runs_of_the_same_config_that_are_older(tmp_path: Path) -> None:
    print_ = {"key": "k", "precision": "fp32", "suite_code": "s1"}
    other_code = {**print_, "key": "k2", "suite_code": "s2"}
    other_config = {**print_, "key": "k3", "precision": "bf16"}
    run_of(tmp_path / "run1", rounds=dated(1, 0.8), fingerprint=print_)
    run_of(tmp_path / "run2", rounds=dated(2, 0.9), fingerprint=other_code)
    run_of(tmp_path / "run3", rounds=dated(3, 5.0), fingerprint=other_config)
    this = run_of(tmp_path / "run4", rounds=dated(4, 1.0), fingerprint=print_)
    run_of(tmp_path / "run5", rounds=dated(5, 7.0), fingerprint=print_)
    html = page.body(this, this)
    assert "p_core of 3 runs: from 1,347 to 1,684" in html
    assert "+11.1 % noise unknown, run2" in text_of(html)
    shutil.rmtree(tmp_path / "run1")
    assert "p_core of" not in page.body(this, this), "two runs make no trend"
    shutil.rmtree(tmp_path / "run2")
    assert "noise unknown" not in of(this).content


def test_a_damaged_earlier_run_is_named_and_the_page_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_of(tmp_path / "run1", rounds=dated(1, 0.8))
    this = run_of(tmp_path / "run2", rounds=dated(2, 1.0))
    (tmp_path / "run1" / "toy_pytorch_CPU_1_1_1" / "round1" / "outcome.json").write_text("{")
    assert "noise unknown" not in of(this).content

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(page._Earlier, "_runs", broken)
    text = of(this).content
    assert "toy:pytorch:CPU:1:1:1: cannot read earlier runs: ZeroDivisionError: a bug" in text
    assert "Figures" in text


def test_energy_per_sample_and_throughput_per_watt_are_sorted_by_economy() -> None:
    outcome = recorded("converged_1x1")
    rows = [
        row(replace(with_metric(outcome, "device_energy_per_sample", joules), case=f"{name}:pytorch:CPU:1:1:1"))
        for name, joules in (("wasteful", 4.0), ("thrifty", 0.5))
    ]
    text = text_of(comparisons.energy(rows))
    assert text.index("thrifty") < text.index("wasteful")
    assert "0.5 J/sample 2 images/s per W" in text
    assert "4 J/sample 0.25 images/s per W" in text
    assert comparisons.energy([row(with_metric(outcome, "device_energy_per_sample", None))]) == ""


def test_the_end_of_a_log_is_in_the_page_if_its_round_failed(tmp_path: Path) -> None:
    good = add_case(tmp_path, "converged_1x1")
    bad = add_case(tmp_path, "killed_rank", model="bad")
    text = of(finish(tmp_path)).content
    assert "rank0.out.log: last lines" in text
    assert '"event": "FINISHED"' not in text
    for case_dir in (good, bad):
        for log in case_dir.glob("round1/*/rank*.out.log"):
            log.unlink()
    assert "log: last lines" not in of(tmp_path).content, "without its logs the run still has a page"


def test_an_excerpt_is_short_and_escaped(tmp_path: Path) -> None:
    outcome = recorded("converged_1x1")
    log = tmp_path / outcome.logs[0]
    log.parent.mkdir()
    log.write_text("first\n" * 100 + "x" * 5000 + "\n" + HOSTILE + "\x1b[31m\n")
    html = excerpts(tmp_path, outcome)
    parsed = ParsedPage(html)
    assert "script" not in parsed.tags
    assert "\\x1b[31m" in parsed.content
    assert parsed.content.count("first") == 38, "and two longer lines"
    assert len(html) < 1500
    assert excerpts(tmp_path, outcome, frozenset({log.name})) == ""


def test_a_failed_round_shows_the_failed_ranks_log_first(tmp_path: Path) -> None:
    outcome = recorded("crashed_rank")
    for name in outcome.logs:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"this is {Path(name).name}\n")
    text = text_of(excerpts(tmp_path, outcome))
    assert text.index("rank1.out.log") < text.index("rank0.out.log")
    assert not training_verdicts.converges(outcome)[0].ok


# -- the index page of a folder of runs -------------------------------------------------------------------------


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


# -- change points, of simulated runs ---------------------------------------------------------------------------


def simulated(rng: random.Random, runs: int, level: Callable[[int], float] = lambda run: 1.0) -> list[float]:
    return [level(run) * rng.gauss(1, 0.02) for run in range(runs)]


@pytest.mark.parametrize("runs", [change_points.FEWEST, 30])
def test_unchanged_runs_have_a_change_once_in_a_hundred_times_at_most(runs: int) -> None:
    rng = random.Random(runs)
    found = sum(bool(change_points.find(simulated(rng, runs))) for _ in range(400))
    assert found <= 400 * noise.CHANCE


def test_outliers_are_no_change() -> None:
    rng = random.Random(2)
    for _ in range(100):
        values = simulated(rng, 24)
        for place in rng.sample(range(24), 2):
            values[place] *= 0.7
        assert change_points.find(values) == []


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (lambda run: 0.9 if run >= 14 else 1.0, [14]),
        (lambda run: 0.9 if run >= 21 else 1.0, [21]),
        (lambda run: 0.9 if 8 <= run < 17 else 1.0, [8, 17]),
        (lambda run: 1.0 if run < 8 else 0.9 if run < 16 else 0.8, [8, 16]),
    ],
    ids=["fell", "fell in the last three runs", "fell and rose", "fell twice"],
)
def test_a_change_of_five_deviations_is_found_at_its_run(level: Callable[[int], float], expected: list[int]) -> None:
    rng = random.Random(3)
    found = [change_points.find(simulated(rng, 24, level)) for _ in range(100)]
    assert sum(one == expected for one in found) >= 80
    assert sum(len(one) == len(expected) for one in found) >= 90


def test_too_few_runs_and_too_small_changes_are_no_change() -> None:
    assert change_points.find([1.0] * 5 + [0.5] * 4) == [], "nine runs"
    assert change_points.find([1.0] * 10 + [1 - noise.LEAST / 2] * 10) == [], "without any noise"
    assert change_points.find([1.0] * 10 + [1 - noise.LEAST * 2] * 10) == [10]
