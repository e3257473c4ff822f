"""A log belongs to one round: what it repeats of what its rank was given, when it was written, and where it ends."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flagperf_driver import events
from pytest_flagperf.kinds.training.verdicts import converges, throughput
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.verdicts import failed
from tests.helpers.recording import START_MS, Entry, Training, given, write

GOOD = Training("good", nproc=2, token="0f1e")
Edit = Callable[[list[Entry]], list[Entry]]


def failures(round_dir: Path) -> list[str]:
    outcome = measure(round_dir)
    assert {failure.kind for failure in outcome.failures} <= {"log"}, outcome.failures
    if outcome.failures:
        assert not outcome.ok
        for found in (converges(outcome), throughput([outcome])):
            assert {verdict.name for verdict in failed(found)} == {"own_log"}
    return [failure.sentence for failure in outcome.failures]


def repeated(name: str, value: object) -> Edit:
    """INIT_END repeats something else."""
    changed = {"given": {**given(GOOD), name: value}}
    return lambda entries: [
        (at, event, {**value, **changed} if event == events.INIT_END else value) for at, event, value in entries
    ]


def again(event: str) -> Edit:
    return lambda found: [each for entry in found for each in ([entry, entry] if entry[1] == event else [entry])]


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (again(events.FINISHED), "FINISHED occurs 2 times, expected once"),
        (again(events.TRAIN_START), "TRAIN_START occurs 2 times, expected once"),
        (
            lambda found: [*found, (9.0, events.STEP_BEGIN, {"step": 1})],
            "STEP_BEGIN comes after FINISHED, expected nothing after it",
        ),
        (repeated("seed", 43), "INIT_END repeats seed 43, expected 42 (plan.json)"),
        (repeated("round", 2), "INIT_END repeats round 2, expected 1 (plan.json)"),
        (
            repeated("case", "toy:pytorch:CPU:1:1:1"),
            "INIT_END repeats case 'toy:pytorch:CPU:1:1:1', expected 'toy:pytorch:CPU:1:2:1' (plan.json)",
        ),
        (repeated("token", "beef"), "INIT_END repeats token 'beef', expected '0f1e' (plan.json)"),
        (
            lambda found: [entry for entry in found if entry[1] != events.INIT_END],
            "it has no INIT_END, which repeats the round's token",
        ),
    ],
    ids=["finished twice", "started twice", "after the end", "seed", "round", "case", "token", "no token"],
)
def test_a_log_that_is_not_the_rounds_alone_fails_it(tmp_path: Path, edit: Edit, why: str) -> None:
    training = replace(GOOD, edit=lambda rank, found: edit(found) if rank == 1 else found)
    sentence = f"round 1: rank 1 on localhost: its log does not match this round: {why}"
    assert failures(write(training, tmp_path / "round1")) == [sentence]


def test_a_record_of_another_rank_fails_the_round(tmp_path: Path) -> None:
    round_dir = write(GOOD, tmp_path / "round1")
    path = next(round_dir.glob("*/rank1.out.log"))
    path.write_text(path.read_text().replace('"rank": 1}', '"rank": 3}', 1))
    (sentence,) = failures(round_dir)
    assert sentence.endswith("a record is of rank 3, expected rank 1")


def test_the_log_of_another_run_fails_the_round(tmp_path: Path) -> None:
    """Also with the right token in it, for its times are those of the other run."""
    mine = write(GOOD, tmp_path / "round1")
    theirs = write(replace(GOOD, token="beef", started_ms=START_MS - 86_400_000), tmp_path / "other")
    for path in theirs.glob("*/rank*.out.log"):
        shutil.copy(path, mine / path.relative_to(theirs))
    assert all("INIT_END repeats token 'beef'" in sentence for sentence in failures(mine))
    for path in mine.glob("*/rank*.out.log"):
        path.write_text(path.read_text().replace("beef", "0f1e"))
    assert [sentence.partition("match this round: ")[2] for sentence in failures(mine)] == [
        "INIT_START was written 1 d 0 h before its start (round.json), expected within the round"
    ] * 2


@pytest.mark.parametrize("late_s", [1.0, 4.0])
def test_a_records_time_may_be_off_by_what_offsets_are(tmp_path: Path, late_s: float) -> None:
    """Of a round that no agent's file tells of, and that ended when FINISHED was written: two seconds, not more."""
    round_dir = write(replace(GOOD, token=None), tmp_path / "round1")
    end = json.loads((round_dir / "round.json").read_text())
    end["ended_ms"] = START_MS + round(1000 * (GOOD.seconds - late_s))
    (round_dir / "round.json").write_text(json.dumps(end))
    reasons = [sentence.partition("match this round: ")[2] for sentence in failures(round_dir)]
    assert reasons == (
        [] if late_s < 2 else ["TRAIN_END was written 3.9 s after its end (round.json), expected within the round"] * 2
    )


def test_what_no_agent_saw_was_not_written_while_the_round_ran(tmp_path: Path) -> None:
    round_dir = write(GOOD, tmp_path / "round1")
    (path,) = round_dir.glob("*/milestones.json")
    body = json.loads(path.read_text())
    del body["ranks"]["1"][events.TRAIN_END]
    path.write_text(json.dumps(body))
    (sentence,) = failures(round_dir)
    assert sentence.endswith("the host's agent did not see TRAIN_END during the round (milestones.json)")
    path.unlink()
    assert len(failures(round_dir)) == 2


@pytest.mark.parametrize(
    "body", ["", "[]", '{"ranks": 3}', '{"ranks": {"0": {"started": [1]}, "x": {"started": [1, 2]}}}']
)
def test_a_file_of_the_agent_that_cannot_be_read_is_like_none(tmp_path: Path, body: str) -> None:
    round_dir = write(GOOD, tmp_path / "round1")
    next(round_dir.glob("*/milestones.json")).write_text(body)
    assert len(failures(round_dir)) == 2
