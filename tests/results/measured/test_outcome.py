"""A round's directory becomes an outcome, whatever state it was left in."""

import json
import math
import re
import shutil
from functools import partial
from html import escape
from pathlib import Path

import pytest

from flagperf_driver import events, perflog
from flagperf_driver.logged_step import CHARTED, STEP_FIGURES
from flagperf_driver.node.logs import ranklog
from flagperf_driver.node.logs.ranges import LOGGED
from flagperf_driver.node.logs.ranklog import CURVE_POINTS, Curve, read_rank
from flagperf_driver.target import Target
from pytest_flagperf.results.figures.kinds import FIGURES
from pytest_flagperf.results.measured import phases
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.outcome import SCHEMA, Outcome
from pytest_flagperf.results.tables import columns
from pytest_flagperf.stored import FormatError
from pytest_flagperf_page import page
from tests.helpers import recording
from tests.helpers.recording import START_MS, Entry, Training, write
from tests.helpers.results_help import NAMES, edit_json, recorded, replay_dir
from tests.helpers.stored_runs import run_of


@pytest.fixture
def round_dir(tmp_path: Path) -> Path:
    shutil.copytree(replay_dir("converged_1x2"), tmp_path / "round1")
    return tmp_path / "round1"


def test_a_directory_measured_twice_gives_equal_outcomes_which_survive_json() -> None:
    assert [name for name in NAMES if measure(replay_dir(name)).to_json() != recorded(name).to_json()] == []
    for name in NAMES:
        body = recorded(name).to_json()
        again = Outcome.from_json(json.loads(json.dumps(body, allow_nan=False)))
        assert again.to_json() == body, name
        assert type(again.steps) is tuple
        assert again.ok == recorded(name).ok, name


FINISHED = '"event": "FINISHED", "value": {'
HELD_UP = "rank 1 on localhost held up the others: a forward pass takes 2 times as long"


@pytest.mark.parametrize(
    ("seconds", "steps", "warnings"),
    [((0.010, 0.020), 100, [HELD_UP]), ((0.010, 0.011), 100, []), ((0.010, 0.020), 5, [])],
    ids=["slow", "near", "too few steps"],
)
def test_who_delayed_all_is_named(
    tmp_path: Path, seconds: tuple[float, float], steps: int, warnings: list[str]
) -> None:
    def edit(rank: int, found: list[Entry]) -> list[Entry]:
        *before, (at, event, end) = found
        return [*before, (at, event, {**end, "forward_time": seconds[rank], "measured_steps": steps})]

    outcome = measure(write(Training("slow", nproc=2, edit=edit), tmp_path / "round1"))
    assert [line.partition(" as the other")[0] for line in outcome.warnings] == warnings
    spread = pytest.approx(seconds[1] / (sum(seconds) / 2)) if steps > 5 else None
    assert outcome.value("straggler_spread") == spread


def test_a_package_of_another_version_than_required_is_a_deviation(round_dir: Path) -> None:
    assert not any(name.startswith("version ") for name in measure(round_dir).fingerprint.get("deviations", {}))
    other = {"key": "torch", "value": "2.11.0", "reference": "==2.15.0", "file": "suites/r.txt", "line": 1}
    edit_json(round_dir / "plan.json", other_versions=[other])
    assert measure(round_dir).fingerprint["deviations"]["version torch"] == ["2.11.0", "==2.15.0"]


def test_a_privileged_container_is_named_with_who_requests_it(round_dir: Path) -> None:
    edit_json(round_dir / "plan.json", interpreter={"privileged": "vendors/cpu/vendor.toml"})
    assert "the ranks' container was privileged, as vendors/cpu/vendor.toml requests" in measure(round_dir).warnings


def test_an_outcome_of_a_newer_version_is_refused() -> None:
    body = {**recorded("converged_1x1").to_json(), "schema": SCHEMA + 1}
    with pytest.raises(FormatError, match=r"schema 2 was written by a newer pytest-flagperf.*upgrade"):
        Outcome.from_json(body)
    with pytest.raises(FormatError, match="schema is None"):
        Outcome.from_json({})


def test_figures_say_unit_direction_and_how_they_were_timed() -> None:
    outcome = recorded("converged_1x1")
    assert {
        "e2e_time", "init_time", "raw_train_time", "train_no_eval_time", "pure_training_computing_time",
        "time_to_target", "p_whole", "p_train", "p_core", "step_time_mean", "step_time_p50", "step_time_p90",
        "step_time_p99", "input_wait_share", "mfu", "peak_memory", "final_loss", "top1",
    } <= {metric.name for metric in outcome.metrics if metric.how}  # fmt: skip
    core = outcome.metric("p_core")
    assert core is not None
    assert core.unit == "images/s"
    assert "host clock over 195 steps after 5 of warm-up" in core.how
    assert (core.samples, core.warmup) == (195, 5)
    wait = outcome.metric("input_wait_share")
    assert wait is not None
    assert (wait.samples, wait.warmup) == (200, 0)


def test_mfu_is_flops_over_the_peak_of_all_cards(round_dir: Path) -> None:
    outcome = measure(round_dir)
    p_core = outcome.value("p_core")
    assert p_core is not None
    assert outcome.value("mfu") == pytest.approx(1e6 * p_core / (2 * 0.1e12))
    edit_json(round_dir / "plan.json", hardware="X9", case="toy:pytorch:X9:1:2:1")
    unknown = measure(round_dir)
    assert unknown.unverified_chip
    assert unknown.metric("mfu") is None, "the peak of an unknown chip is unknown"
    edit_json(round_dir / "plan.json", peak_tflops=1e-9)
    assert (measure(round_dir).value("mfu") or 0) > 1, "which fails"
    edit_json(round_dir / "plan.json", peak_tflops=None)
    assert measure(round_dir).metric("mfu") is None


def test_mfu_does_not_count_padding_as_work(round_dir: Path) -> None:
    plain = measure(round_dir)
    assert plain.metric("padding_share") is None
    for path in round_dir.glob("*/rank*.out.log"):
        shares = '"padding_share": 0.4, "token_share": 0.75, '  # computes a fourth more than full samples have
        path.write_text(path.read_text().replace(FINISHED, FINISHED + shares))
    padded, mfu = measure(round_dir), plain.value("mfu")
    assert (padded.value("padding_share"), padded.value("p_core")) == (0.4, plain.value("p_core"))
    assert mfu is not None
    assert padded.value("mfu") == pytest.approx(0.75 * mfu)


def test_time_to_target_is_of_the_first_evaluation_and_broken_lines_are_counted() -> None:
    outcome = recorded("converged_1x1")
    assert outcome.quality.reached is not None
    assert outcome.quality.reached.step == 150
    assert outcome.value("time_to_target") == pytest.approx(150 * 0.02 + 3 * 0.5, abs=0.01)
    assert recorded("missed_target").metric("time_to_target") is None
    outcome = recorded("mangled_log")
    assert (outcome.broken_lines, outcome.other_lines) == (3, 3)
    assert len(outcome.steps) == 19
    assert recorded("converged_1x1").broken_lines == 0


def test_the_untrained_model_cannot_reach_the_target(round_dir: Path) -> None:
    for log in round_dir.glob("*/rank*.out.log"):
        text = log.read_text(encoding="utf-8").replace('top1": 0.1', 'top1": 1.0')
        log.write_text("\n".join(line for line in text.splitlines() if '"EVALUATE"' not in line), encoding="utf-8")
    outcome = measure(round_dir)
    assert outcome.untrained is not None
    assert outcome.untrained.metrics["top1"] == 1.0
    assert outcome.quality.reached is None


def test_a_nan_on_another_rank_counts_and_a_rank_without_a_log_is_a_failure(round_dir: Path) -> None:
    assert measure(round_dir).losses.bad == 0
    log = round_dir / "localhost_noderank0" / "rank1.out.log"
    log.write_text(log.read_text(encoding="utf-8").replace('"loss": 0.2', '"loss": "nan", "x": 0.2'), encoding="utf-8")
    assert measure(round_dir).losses.bad > 0
    (round_dir / "localhost_noderank0" / "rank1.out.log").unlink()
    outcome = measure(round_dir)
    assert not outcome.ok
    assert outcome.failures[0].sentence == (
        "round 1: rank 1 on localhost ended without a log (exit code 0); rank1.out.log is missing"
    )


def test_a_rank_whose_log_was_not_fetched_says_where_it_is(round_dir: Path) -> None:
    (round_dir / "localhost_noderank0" / "rank1.out.log").unlink()
    missing = {"host": "localhost", "noderank": 0, "log_dir": "/tmp/rounds/x", "why": "no route"}
    edit_json(round_dir / "round.json", missing=[missing])
    assert measure(round_dir).failures[0].sentence == (
        "round 1: rank 1 on localhost ended without a log (exit code 0); its log is still on localhost in /tmp/rounds/x"
    )
    edit_json(round_dir / "round.json", missing=[{**missing, "gone": True}])
    assert measure(round_dir).failures[0].sentence.endswith("rank1.out.log is missing")


def test_an_exit_code_fails_the_round_whatever_was_printed(round_dir: Path) -> None:
    ranks = [{"rank": 0, "code": 0}, {"rank": 1, "code": 3}]
    edit_json(round_dir / "round.json", hosts=[{"name": "localhost", "noderank": 0, "ranks": ranks}])
    outcome = measure(round_dir)
    assert [failure.sentence for failure in outcome.failures] == [
        "round 1: rank 1 on localhost ended with exit code 3; its last event: FINISHED"
    ]


def test_without_round_json_the_agents_own_exit_files_are_read(round_dir: Path) -> None:
    (round_dir / "round.json").unlink()
    for rank in (0, 1):
        path = round_dir / "localhost_noderank0" / f"rank{rank}.exit.json"
        path.write_text(json.dumps({"code": 0, "signal": None, "cause": None}), encoding="utf-8")
    outcome = measure(round_dir)
    assert [failure.kind for failure in outcome.failures] == ["no_end"]
    (round_dir / "localhost_noderank0" / "rank1.exit.json").unlink()
    assert [failure.kind for failure in measure(round_dir).failures] == ["no_end", "no_exit"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"state": "finished"}'])
def test_a_broken_end_is_never_ok(round_dir: Path, text: str) -> None:
    (round_dir / "round.json").write_text(text, encoding="utf-8")
    assert not measure(round_dir).ok


def test_an_empty_round_is_a_finding_and_an_unreadable_plan_an_error(tmp_path: Path) -> None:
    shutil.copyfile(replay_dir("converged_1x1") / "plan.json", tmp_path / "plan.json")
    assert not measure(tmp_path).ok
    (tmp_path / "plan.json").write_text('{"schema": 1}', encoding="utf-8")
    with pytest.raises(FormatError, match=r"plan.json: case is missing"):
        measure(tmp_path)
    (tmp_path / "plan.json").write_text("{", encoding="utf-8")
    with pytest.raises(FormatError, match=r"plan.json: invalid JSON"):
        measure(tmp_path)


def test_samples_that_a_tensor_group_shares_count_once(round_dir: Path) -> None:
    file = round_dir / "plan.json"
    values = json.loads(file.read_text())["values"]

    def measured(parallel: object) -> Outcome:
        setting = {"value": parallel, "file": "--set", "line": 0, "layer": "setting"}
        edit_json(file, values={**values, "parallel": setting})
        return measure(round_dir)

    for parallel in ("ddp", "fsdp", {"shard": 2}):
        assert measured(parallel).work.data_ranks == 2
    assert measured({"tensor": 2}).work.data_ranks == 1
    with pytest.raises(FormatError, match=r"plan.json: parallel: shard 3 does not divide 2, the number of ranks"):
        measured({"shard": 3})


def test_a_failure_carries_the_logs_last_lines_and_the_environment_is_known() -> None:
    lines = recorded("crashed_rank").failures[0].last_lines
    assert lines[-1] == "ModuleNotFoundError: No module named 'something_missing'"
    assert len(recorded("missing_finished").failures[0].last_lines) == ranklog.TAIL_LINES
    environment = recorded("converged_1x1").environment
    assert environment["framework"] == "pytorch 2.9.1"
    assert environment["library somelib"] == "1.2.3"
    assert environment["hosts"] == "localhost"
    assert environment["precision"] == "fp32"


@pytest.mark.parametrize("length", [0, 1, CURVE_POINTS - 1, CURVE_POINTS, 3 * CURVE_POINTS + 7, 100_000])
def test_a_curve_keeps_its_ends_and_its_order_in_bounded_space(length: int) -> None:
    curve: Curve[int] = Curve()
    for point in range(length):
        curve.add(partial(int, point))
    points = curve.points()
    assert len(points) <= CURVE_POINTS + 1
    assert curve.seen == length
    assert list(points) == sorted(set(points))
    if length:
        assert points[0] == 0
        assert points[-1] == length - 1
    if length < CURVE_POINTS:
        assert len(points) == length


def test_no_bad_step_of_a_long_log_is_thinned_away(tmp_path: Path) -> None:
    """tests/report/test_report_cost.py measures the memory."""
    with (tmp_path / "log").open("w", encoding="utf-8") as stream:
        for step in range(1, 5_001):
            value = {"step": step, "samples": step, "loss": math.nan if step == 777 else 1.0, "throughput": 1.0}
            stream.write(perflog.format_record(perflog.Record("STEP_END", value)) + "\n")
    log = read_rank(tmp_path / "log", 0, Target("top1", "higher", "fraction", 0.9))
    assert (log.bad_losses, log.first_bad_step, log.logged_steps) == (1, 777, 5_000)
    assert len(log.steps) <= CURVE_POINTS + 1


# -- the parts of a training, by the first rank's log, on the clock of the samples ---------------------------

START = START_MS / 1000


def spans(outcome: Outcome) -> list[tuple[str, float, float]]:
    """In seconds since the round's start."""
    return [(one.name, round(one.start - START, 3), round(one.end - START, 3)) for one in outcome.phases]


def test_a_training_has_all_of_its_parts_until_it_was_last_heard_of() -> None:
    """Steps of 20 ms, five of them warm-up, an evaluation of 0.5 s before the first and after each 50."""
    assert spans(recorded("converged_1x1")) == [
        ("init", 0.0, 3.0), ("warm-up", 3.0, 3.1), ("train", 3.1, 9.0),
        ("evaluate", 4.0, 4.5), ("evaluate", 5.5, 6.0), ("evaluate", 7.0, 7.5), ("evaluate", 8.5, 9.0),
    ]  # fmt: skip
    outcome = recorded("converged_1x1")
    training = phases.training(outcome.phases)
    assert training is not None
    assert training.seconds == pytest.approx(outcome.value("raw_train_time"), abs=0.002)
    evaluated = sum(one.seconds for one in outcome.phases if one.name == phases.EVALUATE)
    assert evaluated == pytest.approx(outcome.value("eval_time"), abs=0.002)
    assert spans(recorded("killed_rank"))[1:3] == [("warm-up", 3.0, 3.1), ("train", 3.1, 4.9)]
    assert [name for name, _, _ in spans(recorded("crashed_rank"))] == ["init"]
    assert phases.training(recorded("crashed_rank").phases) is None
    assert spans(recorded("throughput_only")) == [("init", 0.0, 2.5), ("warm-up", 2.5, 2.6), ("train", 2.6, 3.6)]


def test_the_offset_of_the_hosts_clock_is_taken_off(tmp_path: Path) -> None:
    hosts = ({"name": "far", "address": "10.0.0.1", "clock_offset_s": 3600.0},)
    assert spans(measure(recording.write(Training("ahead", hosts=hosts), tmp_path))) == spans(recorded("converged_1x1"))


@pytest.mark.parametrize(("steps", "end"), [(1, 3.02), (10, 3.2), (13, 3.26), (1000, 9.0)])
def test_the_warm_up_ends_between_logged_steps_too(tmp_path: Path, steps: int, end: float) -> None:
    """Every tenth is logged. A warm-up that outlasts the training leaves no time to train."""
    shutil.copytree(replay_dir("converged_1x1"), tmp_path / "round1")
    edit_json(tmp_path / "round1" / "plan.json", config={"timing_warmup_steps": steps})
    found = spans(measure(tmp_path / "round1"))
    assert ("warm-up", 3.0, end) in found
    assert [one for one in found if one[0] == "train"] == ([("train", end, 9.0)] if end < 9 else [])


def test_without_a_warm_up_all_is_training(tmp_path: Path) -> None:
    shutil.copytree(replay_dir("converged_1x1"), tmp_path / "round1")
    edit_json(tmp_path / "round1" / "plan.json", config={})
    assert spans(measure(tmp_path / "round1"))[:2] == [("init", 0.0, 3.0), ("train", 3.0, 9.0)]


# -- a figure of a step: declared in one place, and then in the outcome, the tables and the page ----------------


def test_the_figures_of_the_last_step_are_in_the_tables_and_on_the_page(tmp_path: Path) -> None:
    """tests/driver/training/test_training.py shows that the loop logs them."""
    outcome = recorded("experts")
    text = page.standalone(run_of(tmp_path, "experts"), tmp_path / "report.html")
    for name, value in (("expert_load", 1.6), ("expert_entropy", 0.8)):
        metric = outcome.metric(name)
        assert metric is not None
        assert metric.value == pytest.approx(value)
        assert metric.how == STEP_FIGURES[name].how
        assert columns.row("run", outcome)[name] == metric.value
        assert escape(FIGURES[name].meaning) in text
    assert all(one.chart in text for one in CHARTED.values())
    known = LOGGED[events.STEP_END].keys() & LOGGED[events.FINISHED].keys() & dict(columns.LATER).keys()
    assert STEP_FIGURES.keys() <= known, "also those that are declared later have a range and a column"


@pytest.mark.parametrize("name", CHARTED)
def test_at_most_eight_files_name_a_figure(name: str, repo: Path) -> None:
    """Those that declare, measure and judge it, and those that set its limit."""
    folders = ("pytest_flagperf", "flagperf_driver", "suites")
    files = [path for folder in folders for path in repo.glob(f"{folder}/**/*.py") if "tests" not in path.parts]
    naming = [path for path in files if re.search(rf"\b(max_)?{name}\b", path.read_text(encoding="utf-8"))]
    assert 0 < len(naming) <= 8, naming
