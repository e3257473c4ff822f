"""A vendor's own code is named beside the verdict wherever it is shown, from the run directory alone."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from flagperf_driver.perflog import Record, format_record
from pytest_flagperf.commands import main
from pytest_flagperf.report.export import github
from pytest_flagperf.report.export.junit import properties
from pytest_flagperf.report.terminal.summary import RunSummary, summarize_run
from pytest_flagperf.results.measured.measure import _gain, measure
from pytest_flagperf.results.measured.replay import Replay
from pytest_flagperf.results.measured.vendor_code import names, phrase
from pytest_flagperf.results.tables import columns, store
from pytest_flagperf.results.verdicts.case_result import CaseResult
from pytest_flagperf.stored.round_dir import RoundDir
from pytest_flagperf_page import page
from tests.helpers.results_help import edit_json, recorded, replay_dir
from tests.helpers.stored_runs import add_case
from tests.helpers.trees import write
from tests.plugin.conftest import toy as toy  # a fixture

NAMED = "acme's own step backward, hook events, module torch_acme"


def stored(to: Path, *replays: str) -> Path:
    """A run of a case for each replay."""
    run = to / "run"
    for number, replay in enumerate(replays, 1):
        add_case(run, replay, model=f"toy{number}")
    return run


def closed(to: Path, *replays: str) -> RunSummary:
    return summarize_run(store.load_run(stored(to, *replays)), reports=["reports/run20261121093000/report.html"])


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_closing_lines_name_it(tmp_path: Path) -> None:
    end = closed(tmp_path, "converged_1x1", "vendor_code")
    assert end.verdict().startswith(f"flagperf: 2 of 2 cases passed, 1 with {NAMED}; reports/")
    assert end.verdict(80).startswith("flagperf: 2 of 2 cases passed, 1 with ")
    assert f"vendor code: toy2:pytorch:CPU:1:1:1 passed with {NAMED}" in flat("\n".join(end.lines(80)))
    narrow = closed(tmp_path / "narrow", "vendor_code", "missed_target").verdict(80)
    assert "1 of 2 cases passed, 1 with vendor code, 1 failed" in narrow
    assert len(narrow) <= 80


def test_the_gain_of_a_vendors_steps_is_named_with_them(tmp_path: Path) -> None:
    (directory,) = stored(tmp_path, "vendor_code").glob("*/round1")
    (log,) = directory.glob("*/rank0.out.log")
    (finished,) = [json.loads(line.partition("] ")[2]) for line in log.read_text().splitlines() if "FINISHED" in line]
    step_s = finished["value"]["step_time"]["p50"]
    outcome = measure(directory)
    plan, replay = RoundDir(directory).read_plan(), Replay(step_time=1.314 * step_s)
    gain = _gain(plan, replay, finished["value"])
    assert [*_gain(replace(plan, fingerprint={}), replay, finished["value"])] == [], "without a vendor's code"
    outcome = replace(outcome, metrics=(*outcome.metrics, *gain))
    named = f"{NAMED} (the vendor's steps: 1.31 times the suite's own)"
    assert CaseResult(outcome.case, (outcome,), {}).vendor_code == named
    assert ("vendor_code", named) in properties([outcome])
    assert columns.row("run", outcome)["vendor_factor"] == pytest.approx(1.314)


def test_cases_with_the_same_code_share_a_line_and_many_are_counted(tmp_path: Path) -> None:
    one = replace(closed(tmp_path, "vendor_code").summaries[0])
    end = RunSummary(summaries=tuple(replace(one, case=f"m:f:H:1:1:{number}") for number in range(1, 15)))
    (line,) = [line for line in end.lines(10_000) if line.startswith("vendor code: ")]
    assert line.endswith(f"m:f:H:1:1:10 passed, and 4 more with {NAMED}")
    assert f"14 with {NAMED}" in end.verdict()
    other = replace(one, case="x:f:H:1:1:1", vendor_code="acme's own hook memory")
    assert "15 with vendor code" in replace(end, summaries=(*end.summaries, other)).verdict()


def test_the_page_names_it_at_the_top_in_the_table_and_in_the_section(tmp_path: Path) -> None:
    run = stored(tmp_path, "converged_1x1", "vendor_code")
    body = page.body(run, run).replace("&#x27;", "'")
    top, _, rest = body.partition('id="overview"')
    assert "1 with vendor code" in top
    assert f"passed with {NAMED}" in top
    assert body.count(f"with {NAMED}") == 3
    assert rest.count(f"with {NAMED}") == 2


def test_github_junit_markdown_csv_and_the_command_name_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The control is the first case: nothing is named without vendor code."""
    run = stored(tmp_path, "converged_1x1", "vendor_code")
    loaded = store.load_run(run)
    summary = github.summary(summarize_run(loaded))
    assert f"<code>toy2:pytorch:CPU:1:1:1</code> with {NAMED}" in summary
    named = [dict(properties(case.outcomes)).get("vendor_code") for case in loaded.cases]
    assert named == [None, NAMED]
    columns.write_csv(tmp_path / "results.csv", [("run", case.outcomes) for case in loaded.cases])
    rows = csv.DictReader((tmp_path / "results.csv").read_text().splitlines())
    assert [row["vendor_code"] for row in rows] == ["", "step backward; hook events; module torch_acme"]
    assert main(["export", str(run), "--format=markdown"]) == main(["show", str(run), "--width=200"]) == 0
    tables, out = (run / "performance.md").read_text(), capsys.readouterr().out
    assert f"1x1 with {NAMED}." in tables
    assert f"vendor code: toy2:pytorch:CPU:1:1:1 passed with {NAMED}" in out
    assert [text.count("'s own") for text in (summary, tables, out)] == [2, 1, 2]


@pytest.mark.parametrize(("replay", "kinds"), [("vendor_code", ["not_confined"]), ("converged_1x1", [])])
def test_unconfined_ranks_are_a_warning_only_with_vendor_code(tmp_path: Path, replay: str, kinds: list[str]) -> None:
    (round_dir,) = stored(tmp_path, replay).glob("*/round*")
    (host,) = (path for path in round_dir.iterdir() if path.is_dir())
    before = measure(round_dir)
    write(host, "milestones.json", json.dumps({"schema": 1, "ranks": {}, "not_confined": "Landlock is missing"}))
    after = measure(round_dir)
    sentence = "the ranks' files could not be confined: Landlock is missing"
    assert [warning.kind for warning in after.validity_warnings] == kinds
    assert before.validity_warnings == ()
    texts = [warning.sentence for warning in after.validity_warnings] or set(after.warnings) - set(before.warnings)
    assert [text.partition(": ")[2] for text in texts] == [sentence]


def test_data_in_an_order_that_the_agent_did_not_give_are_found(tmp_path: Path) -> None:
    (round_dir,) = stored(tmp_path, "vendor_code").glob("*/round*")
    edit_json(round_dir / "plan.json", replay={"states": "states"})
    (log,) = round_dir.glob("*/rank0.out.log")
    before = log.read_text()

    def problem(**given: int) -> str:
        write(log.parent, "milestones.json", json.dumps({"schema": 1, "ranks": {}, "states": {"orders": given}}))
        found = measure(round_dir).replay
        assert found is not None
        return found.problem

    log.write_text(before + format_record(Record("EPOCH_BEGIN", {"epoch": 1, "order": 7}, 0, 0, "loop.py", 1)) + "\n")
    assert problem(**{"1": 7}) == "no segment was repeated"
    assert problem(**{"1": 8}) == "the order of the data in epoch 1 was 7; the agent gave 8"
    assert problem() == "the order of the data in epoch 1 was 7; the agent gave None"
    log.write_text(before + format_record(Record("EPOCH_BEGIN", {"epoch": 1}, 0, 0, "loop.py", 1)) + "\n")
    assert problem(**{"1": 8}) == "the order of the data in epoch 1 was None; the agent gave 8"


def test_a_training_that_no_clean_process_could_repeat_has_a_warning(tmp_path: Path) -> None:
    (round_dir,) = stored(tmp_path, "vendor_code").glob("*/round*")
    edit_json(round_dir / "plan.json", replay={"missing": "other hosts need --set=checkpoint_dir=DIR"})
    (warning,) = measure(round_dir).validity_warnings
    assert warning.kind == "not_repeated"
    assert warning.sentence.endswith("code: other hosts need --set=checkpoint_dir=DIR")


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ((), ""),
        (("step backward",), "acme's own step backward"),
        (("step a", "step b", "step c"), "acme's own steps a, b and c"),
        (tuple(f"variable V{n}" for n in range(6)), "acme's own variables V0, V1, V2, V3 and 2 more"),
        (("package --index-url https://x", "extension c"), "acme's own package --index-url https://x, extension c"),
    ],
)
def test_the_phrase(listed: tuple[str, ...], expected: str) -> None:
    assert phrase("acme", listed) == expected


def test_a_deviation_of_the_config_is_no_vendor_code() -> None:
    deviations = {"learning_rate": [1, 2], "optimizer class": ["A", "B"], "hook memory": ["x", "y"], "step": [1, 2]}
    assert names({"deviations": deviations}) == ("hook memory",)
    assert names({}) == names({"deviations": None}) == ()


def warnings_of(replay: str) -> list[str]:
    return [warning.sentence for warning in recorded(replay).validity_warnings if warning.kind == "vendor_code"]


def test_a_rank_with_other_replaced_code_than_planned_is_named() -> None:
    assert warnings_of("vendor_code_not_reported") == [
        "the plan lists acme's own hook events, but rank 1 did not report it"
    ]
    assert warnings_of("vendor_code_not_planned") == [
        "rank 0 reported acme's own step create_optimizer, but the plan does not list it"
    ]
    assert warnings_of("vendor_code") == warnings_of("converged_1x2") == []


@pytest.mark.parametrize("value", ["5", '"backward"', "null", '{"a": 1}'])
def test_a_field_of_another_type_is_no_report(tmp_path: Path, value: str) -> None:
    round_dir = Path(shutil.copytree(replay_dir("vendor_code"), tmp_path / "round1"))
    (log,) = round_dir.glob("*/rank0.out.log")
    text = log.read_text()
    assert text.count('"replaced": ["backward"]') == 1
    log.write_text(text.replace('"replaced": ["backward"]', f'"replaced": {value}'))
    outcome = measure(round_dir)
    assert [warning.sentence for warning in outcome.validity_warnings] == [
        "the plan lists acme's own step backward, but rank 0 did not report it"
    ]
