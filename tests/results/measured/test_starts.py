"""A training of several starts: its curve, the time that it lost, and the pairs that hold over all starts."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver import events
from pytest_flagperf.kinds.training.verdicts import converges
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.stored.round_dir import RoundDir
from tests.helpers.recording import CONFIG, START_MS, Entry, Json, Sampling, Training, write

STEPS, SAVED, KILLED = 200, 100, 140
FIELDS = {"training": "run1 a", "config": {**CONFIG, "checkpoint_dir": "/shared", "checkpoint_steps": 50}}
# 20 ms a step, four evaluations of 0.5 s: TRAIN_START after 3 s, step 140 after 2.8 s + 1 s of training.
WHOLE = Training("whole", steps=STEPS, started_ms=START_MS, plan_fields=FIELDS)
KEPT_S = SAVED * 0.02 + 2 * 0.5
KEPT = {
    "step": SAVED, "samples": SAVED * 32, "train_time": KEPT_S, "eval_time": 1.0, "compute_time": SAVED * 0.02,
    "input_wait_time": 0.0, "check_time": 0.0, "save_time": 0.0,
}  # fmt: skip
LATER_S = 60


def killed(_: int, entries: list[Entry]) -> list[Entry]:
    ends = next(number for number, (_, event, its) in enumerate(entries) if its.get("step", 0) > KILLED)
    return entries[:ends]


def continued(kept: Json, from_step: int = SAVED) -> Training:
    """The second start: the steps after the checkpoint, the last evaluation before it logged again."""

    def edit(_: int, entries: list[Entry]) -> list[Entry]:
        untrained = next(at for at, event, _ in entries if event == events.INIT_EVALUATION)
        moved: list[Entry] = []
        for at, event, its in entries:
            if event == events.INIT_EVALUATION:
                continue
            later = {
                key: its[key] + of
                for key, of in (("step", from_step), ("samples", from_step * 32))
                if key in its and event != events.FINISHED
            }
            moved.append((at, event, {**its, **later}))
            if event == events.TRAIN_START:
                again = {"step": from_step, "samples": from_step * 32, "time": 0.0, "top1": WHOLE.accuracy(from_step)}
                moved.append((untrained, events.EVALUATE, again))
        return moved

    def finished(end: Json) -> Json:
        whole = {"steps": 100 + from_step, "samples": (100 + from_step) * 32, "resumed": kept}
        times = ("raw_train_time", "train_time"), ("eval_time", "eval_time")
        sums = {name: end[name] + kept[of] for name, of in times}
        sums["train_no_eval_time"] = sums["raw_train_time"] - sums["eval_time"]
        sums["pure_training_computing_time"] = end["pure_training_computing_time"] + kept["compute_time"]
        sums["input_wait_time"] = end["input_wait_time"] + kept["input_wait_time"]
        rates = {
            "p_whole": whole["samples"] / sums["raw_train_time"],
            "p_train": whole["samples"] / sums["train_no_eval_time"],
        }
        return {**end, **whole, **sums, **rates}

    return Training(
        "second", steps=100, edit=edit, finished=finished, plan_fields=FIELDS, started_ms=START_MS + 1000 * LATER_S,
        accuracy_at=lambda step: WHOLE.accuracy(step + from_step),
    )  # fmt: skip


FAULT = {"kind": "killed", "host": "localhost", "rank": 0, "sentence": "rank 0 was killed"}
FIRST = replace(WHOLE, state="failed", edit=killed, fault=FAULT)


def measured(folder: Path, second: Training, first: Training = FIRST) -> Outcome:
    write(first, folder / "failed1-round1")
    return measure(write(second, folder / "round1"))


def test_a_continued_training_has_the_curve_of_an_undisturbed_one_and_tells_its_goodput(tmp_path: Path) -> None:
    outcome, whole = measured(tmp_path, continued(KEPT)), measure(write(WHOLE, tmp_path / "whole" / "round1"))
    assert outcome.failures == whole.failures == ()
    assert [(step.step, step.samples) for step in outcome.steps] == [(step.step, step.samples) for step in whole.steps]
    before = [(step.step, step.time) for step in whole.steps if step.step <= SAVED]
    assert [(step.step, step.time) for step in outcome.steps][: len(before)] == before
    assert [(it.step, it.metrics) for it in outcome.evaluations] == [(it.step, it.metrics) for it in whole.evaluations]
    assert (outcome.untrained, outcome.quality.best) == (whole.untrained, whole.quality.best)
    # The second start trains after 60 s; its 50th step follows 1 s later and is evaluated for 0.5 s.
    assert outcome.value("time_to_target") == pytest.approx(60 + 1 + 0.5)
    assert [verdict.ok for verdict in converges(outcome)] == [verdict.ok for verdict in converges(whole)]
    # By round.json: from 0.5 s before the first start to 12.5 s after the second one's.
    assert outcome.value("wall_time") == pytest.approx(LATER_S + 12.5)
    kept = 2 * KEPT_S
    assert outcome.value("goodput") == pytest.approx(kept / (LATER_S + 12.5))
    assert outcome.value("lost_time") == pytest.approx(LATER_S + 12.5 - kept)
    assert (outcome.value("restarts"), outcome.value("steps_repeated")) == (1, KILLED - SAVED)
    first, second = outcome.starts
    assert (first.from_step, first.last_step, first.kind, first.host) == (0, KILLED, "killed", "localhost")
    assert (second.from_step, second.last_step, second.kind) == (SAVED, STEPS, "")
    remark = "start 1 of 2 ended at step 140: rank 0 was killed; the next one continued from step 100"
    assert remark in outcome.warnings
    assert [(warning.kind, warning.sentence) for warning in outcome.validity_warnings] == [
        (
            "restarted",
            "the training was started 2 times (goodput 8.3 %, 40 steps done again): p_core, step times, energy and"
            " other samples are those of the last start alone",
        )
    ]
    assert Outcome.from_json(outcome.to_json()).starts == outcome.starts
    parts = next(metric.how for metric in outcome.metrics if metric.name == "lost_time")
    assert parts == (
        "wall_time - raw_train_time: starting 7 s, steps that were lost 800 ms, from the last record to the end"
        " 11.2 s, between two starts 47.5 s"
    ), "together the lost time"


def test_a_later_start_that_was_set_aside_is_measured_as_before(tmp_path: Path) -> None:
    before = measured(tmp_path, continued(KEPT)).to_json()
    RoundDir(tmp_path / "round1").move_aside()
    assert measure(tmp_path / "failed2-round1").to_json() == before


def test_a_start_that_trains_no_step_loses_nothing_of_the_others(tmp_path: Path) -> None:
    def without_training(_: int, entries: list[Entry]) -> list[Entry]:
        return [entry for entry in entries if entry[1] == events.INIT_START]

    write(replace(FIRST, edit=without_training, started_ms=START_MS + 20_000), tmp_path / "failed2-round1")
    outcome = measured(tmp_path, continued(KEPT))
    assert outcome.failures == ()
    assert [start.from_step for start in outcome.starts] == [0, None, SAVED]
    assert (outcome.value("restarts"), outcome.value("steps_repeated")) == (2, KILLED - SAVED)
    assert "start 2 of 3 ended before its first step: rank 0 was killed" in "".join(outcome.warnings)
    assert outcome.value("lost_time") == pytest.approx(LATER_S + 12.5 - 2 * KEPT_S)


def test_tries_of_another_training_and_a_training_without_checkpoints_have_no_starts(tmp_path: Path) -> None:
    other = measured(tmp_path / "other", continued(KEPT), replace(FIRST, plan_fields={**FIELDS, "training": "run2 b"}))
    without = measured(tmp_path / "without", replace(WHOLE, plan_fields={**FIELDS, "config": CONFIG}))
    assert other.starts == without.starts == ()
    assert other.quality.reached is not None
    assert other.value("time_to_target") == pytest.approx(KEPT_S + other.quality.reached.time)
    assert without.value("goodput") is without.value("restarts") is None
    assert without.validity_warnings == ()


@pytest.mark.parametrize(("config", "fails"), [(FIELDS["config"], False), (CONFIG, True)])
def test_what_a_checkpoint_brought_is_taken_off_where_there_are_checkpoints(
    tmp_path: Path, config: object, fails: bool
) -> None:
    second = replace(continued(KEPT), token="0f1e", plan_fields={"config": config})
    sentences = [failure.sentence for failure in measure(write(second, tmp_path / "round1")).failures]
    assert any("(pair train_time_seen)" in sentence for sentence in sentences) == fails
    assert fails or sentences == []


@pytest.mark.parametrize(
    ("kept", "from_step", "pair"),
    [({**KEPT, "train_time": KEPT_S + 1.9}, SAVED, "resumed_time"), ({**KEPT, "step": 150}, 150, "resumed_step")],
)
def test_a_start_from_an_untrained_step_fails(tmp_path: Path, kept: dict[str, Any], from_step: int, pair: str) -> None:
    outcome = measured(tmp_path, continued(kept, from_step))
    assert pair in [failure.sentence.rpartition("(pair ")[2].rstrip(")") for failure in outcome.failures]
    control = measured(tmp_path, continued(KEPT))
    assert control.failures == ()


def test_a_start_whose_log_is_lost_with_its_host_fails_nothing_and_shortens_no_time(tmp_path: Path) -> None:
    measured(tmp_path, continued(KEPT), replace(FIRST, fault={**FAULT, "kind": "lost"}))
    (host,) = (tmp_path / "failed1-round1").glob("*_noderank0")
    shutil.rmtree(host)
    outcome = measure(tmp_path / "round1")
    assert outcome.failures == ()
    # From the start of the round, 3.5 s before its TRAIN_START.
    assert outcome.value("time_to_target") == pytest.approx(60 + 1 + 0.5 + 3.5)
    assert outcome.value("goodput") == pytest.approx(2 * KEPT_S / (LATER_S + 12.5))
    assert outcome.steps[0].step > SAVED
    assert "start 1 of 2 ended and the log of its first rank is missing here" in "".join(outcome.warnings)
    parts = next(metric.how for metric in outcome.metrics if metric.name == "lost_time")
    assert "starting 3.5 s, steps that were lost 9.5 s, from the last record to the end 6 s" in parts


def test_a_start_that_a_killed_controller_left_counts_by_its_log(tmp_path: Path) -> None:
    def at_70(_: int, entries: list[Entry]) -> list[Entry]:
        return [entry for entry in entries if entry[2].get("step", 0) <= 70 and entry[1] != events.FINISHED]

    write(replace(FIRST, edit=at_70, started_ms=START_MS - 30_000), tmp_path / "failed1-round1")
    second = write(FIRST, tmp_path / "failed2-round1")
    (second / "round.json").unlink()
    outcome = measure(write(continued(KEPT), tmp_path / "round1"))
    assert outcome.failures == (), "step 100 is that of the second start"
    assert [start.last_step for start in outcome.starts] == [70, KILLED, STEPS]
    assert outcome.value("lost_time") == pytest.approx(30 + LATER_S + 12.5 - 2 * KEPT_S)
    (log,) = second.glob("*_noderank0/rank0.out.log")
    log.unlink()
    outcome = measure(tmp_path / "round1")
    assert outcome.failures == ()
    assert (outcome.value("restarts"), outcome.value("goodput")) == (2, None)
    assert "1 of 3 starts left neither a record nor a log" in "".join(outcome.warnings)


def test_the_drawings_and_impossible_figures_of_all_starts_count(tmp_path: Path) -> None:
    def drawn(step: int, entries: list[Entry]) -> list[Entry]:
        drawing = {"step": step, "name": "digits", "rows": 1, "columns": 1, "pixels": "AA=="}
        return [*entries[:4], (entries[3][0], events.DRAWINGS, drawing), *entries[4:]]

    def with_negative_time(rank: int, entries: list[Entry]) -> list[Entry]:
        wrong = [
            (at, event, {**its, "input_wait": -1.0} if its.get("step") == 20 else its) for at, event, its in entries
        ]
        return drawn(0, killed(rank, wrong))

    second = continued(KEPT)
    outcome = measured(
        tmp_path,
        replace(second, edit=lambda rank, entries: drawn(STEPS, second.edit(rank, entries))),
        replace(FIRST, edit=with_negative_time),
    )
    assert [drawing.step for drawing in outcome.drawings] == [0, STEPS]
    assert [(figure.name, figure.step) for figure in outcome.impossible] == [("input_wait", 20)]


def test_the_energy_of_a_continued_training_is_named_as_that_of_the_last_start(tmp_path: Path) -> None:
    outcome = measured(tmp_path, replace(continued(KEPT), sampling=Sampling(devices=1)))
    whole = measure(write(replace(WHOLE, sampling=Sampling(devices=1)), tmp_path / "whole" / "round1"))
    for one, named in ((outcome, True), (whole, False)):
        hows = [metric.how for metric in one.metrics if metric.name.startswith(("device_", "host_"))]
        assert hows
        assert {how.endswith(", the last of 2 starts alone") for how in hows} == {named}
