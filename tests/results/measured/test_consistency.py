"""A figure and what another saw of it, at the tolerance and beyond it; a log belongs to one round."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flagperf_driver import events
from flagperf_driver.node.logs.ranklog import Evaluation, RankLog
from pytest_flagperf.kinds.training.verdicts import converges, throughput
from pytest_flagperf.results.measured import left_out
from pytest_flagperf.results.measured.consistency import CONTRADICTION, PAIRS
from pytest_flagperf.results.measured.consistency_pairs import RankFigures
from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.measured.sampled import Counted
from pytest_flagperf.results.verdicts import failed, speedup
from pytest_flagperf.results.verdicts.speedup import OneCard
from pytest_flagperf.stored.plan import LeftOutTimeLimits
from tests.helpers.recording import START_MS, Entry, Json, Sampling, Training, given, write
from tests.helpers.results_help import edit_json

# Two cards, 200 steps of 64 samples in 20 ms, four evaluations of 0.5 s: it trains for 6 s, after 3 s.
GOOD = Training("good", nproc=2, token="0f1e", sampling=Sampling(devices=2, every_s=0.5))
Change = Callable[[float], Training]
OF_STARTS = {"resumed_step", "resumed_time"}
"""Pairs of trainings that were started several times, which test_starts.py tests."""


def finished(name: str) -> Change:
    """A figure of FINISHED has this value."""
    return lambda value: replace(GOOD, finished=lambda end: {**end, name: value})


def with_records(change: Callable[[int, float, str, Json], Entry]) -> Training:
    """Each record is what is made of it, of its rank, time, event and figures."""
    return replace(GOOD, edit=lambda rank, found: [change(rank, *entry) for entry in found])


def written(name: str) -> Change:
    """A figure is multiplied where the log has it by the original's name."""

    def change(factor: float) -> Training:
        def multiplied(line: str) -> str:
            return re.sub(rf'(?<="{name}": )[0-9.e-]+', lambda found: str(float(found[0]) * factor), line)

        return replace(GOOD, text=lambda _, lines: [multiplied(line) for line in lines])

    return change


def moved(event: str, step: int | None = None) -> Change:
    """A record is written so many seconds later."""

    def change(seconds: float) -> Training:
        def record(_: int, at: float, what: str, its: Json) -> Entry:
            return at + (seconds if what == event and its.get("step") == step else 0), what, its

        return with_records(record)

    return change


def second_rank(name: str) -> Change:
    """A figure of the second rank's FINISHED."""

    def change(value: float) -> Training:
        def record(rank: int, at: float, what: str, its: Json) -> Entry:
            return at, what, {**its, name: value} if what == events.FINISHED and rank == 1 else its

        return with_records(record)

    return change


def measuring(value: float) -> Training:
    """Each rank measures two points; the second one of the second rank may be another."""

    def edit(rank: int, found: list[Entry]) -> list[Entry]:
        *before, end = found
        points = ["copy 1", f"copy {value:g}" if rank == 1 else "copy 2"]
        logged = [(end[0], events.MEASURED, {"point": point, "figures": {"copy": 1.0}}) for point in points]
        return [*before, *logged, end]

    return replace(GOOD, edit=edit)


CASES: list[tuple[str, Change, float, float]] = [
    ("original_names", finished("global_steps"), 200, 201),
    ("original_names", written("img/s"), 1, 1.001),
    ("original_names", written("eval_top1"), 1, 1.002),
    ("original_names", written("final_top1"), 1, 1.003),
    # Seen within 5.8 s to 6.2 s.
    ("train_time_seen", finished("raw_train_time"), 6.412, 6.413),
    ("train_time_seen", finished("raw_train_time"), 5.588, 5.587),
    ("init_time_seen", finished("init_time"), 3.356, 3.357),
    ("e2e_time_seen", finished("e2e_time"), 9.468, 9.469),
    ("e2e_time_round", finished("e2e_time"), 9.919, 9.920),
    ("record_times", moved(events.TRAIN_START), 0.3, 0.301),
    ("all_record_times", moved(events.EVALUATE, 150), 1.099, 1.101),
    # What the suite allows of 6 s, 4 s of them without evaluations, and 0.2 s.
    ("warm_up", finished("pure_training_computing_time"), 64.399, 64.401),
    ("waiting", finished("input_wait_time"), 1.2, 1.201),
    ("evaluation", finished("eval_model_time"), 6.295, 6.297),
    ("summarizing", finished("eval_time"), 3.8, 3.801),
    ("checking", finished("check_time"), 60.3, 60.301),
    ("saving", finished("save_time"), 0.2, 0.201),
    ("rest", finished("raw_train_time"), 6.888, 6.889),
    # Seen within 3.5 s to 4.5 s.
    ("steps_seen", finished("pure_training_computing_time"), 2.491, 2.49),
    ("eval_time_seen", finished("eval_time"), 2.704, 2.706),
    ("device_clock", finished("windows_time"), 4.2244, 4.2246),
    ("ranks_steps", second_rank("steps"), 200, 199),
    ("ranks_samples", second_rank("samples"), 12800, 12799),
    ("ranks_time", second_rank("raw_train_time"), 6.559, 6.561),
    ("ranks_points", measuring, 2, 4),
]
"""A pair, the last value of a figure that passes, and the first that does not: reckoned by hand from the recording."""


def contradicted(outcome: Outcome) -> set[str]:
    assert {failure.kind for failure in outcome.failures} <= {CONTRADICTION}, outcome.failures
    return {name for failure in outcome.failures for name in re.findall(r"\(pair (\w+)\)", failure.sentence)}


def test_a_good_round_has_no_contradiction(tmp_path: Path) -> None:
    outcome = measure(write(GOOD, tmp_path / "round1"))
    assert outcome.failures == ()
    # Of both ranks all but those of points and of other trainings; of the first all but three that compare it with
    # itself, of the second all but the energy and the sums of the agent, which reads the first rank's records only.
    assert outcome.compared == 2 * (len(PAIRS) - len(OF_STARTS) - 1) - 3 - 1 - 3
    for found in (converges(outcome), throughput([outcome])):
        assert failed(found) == []
        (consistent,) = [verdict for verdict in found if verdict.name == "consistent"]
        assert consistent.got == f"{outcome.compared} pairs"


@pytest.mark.parametrize(("pair", "change", "passes", "fails"), CASES)
def test_a_figure_passes_at_the_tolerance_and_fails_beyond_it(
    tmp_path: Path, pair: str, change: Change, passes: float, fails: float
) -> None:
    assert pair not in contradicted(measure(write(change(passes), tmp_path / "passes")))
    outcome = measure(write(change(fails), tmp_path / "fails"))
    assert pair in contradicted(outcome)
    assert not outcome.ok
    card = OneCard(1000.0, "this run", "images/s")
    for found in (converges(outcome), throughput([outcome]), speedup([outcome], card, 2, 0.5, "weak")):
        assert "consistent" in {verdict.name for verdict in failed(found)}


def test_an_energy_counter_passes_at_the_tolerance_and_fails_beyond_it(tmp_path: Path) -> None:
    (pair,) = [pair for pair in PAIRS if pair.name == "energy"]
    none = RankLog(0, tmp_path)
    ranks = [
        RankFigures({}, 1, none, counted=(Counted(joules, 1000.0, 50.0, "h1: device 7"),))
        for joules in (1350.0, 1350.1)
    ]
    passes, fails = (found for rank in ranks if (found := pair.of(rank)) is not None)
    assert pair.contradiction(passes) is None
    assert (pair.contradiction(fails) or "").startswith(
        "a device's energy counter (h1: device 7) is 1,350 J, expected 1,000 J (tolerance 350 J)"
    )
    round_dir = write(GOOD, tmp_path / "round1")
    (series,) = round_dir.glob("*/devices.series.csv")
    head, *rows = series.read_text().splitlines()
    cells = [row.split(",") for row in rows]
    wrong = [",".join([*row[:-1], str(5 * float(row[-1]))]) for row in cells]
    series.write_text("\n".join([head, *wrong]) + "\n")
    assert contradicted(measure(round_dir)) == {"energy"}


def test_each_pair_has_a_round_that_fails() -> None:
    assert {pair for pair, *_ in CASES} == {pair.name for pair in PAIRS} - {"energy", *OF_STARTS}


def test_a_contradiction_is_a_sentence(tmp_path: Path) -> None:
    outcome = measure(write(finished("windows_time")(5.0), tmp_path / "round1"))
    assert [failure.sentence for failure in outcome.failures] == [
        f"round 1: rank {rank} on localhost: `pure_training_computing_time` + `input_wait_time`, by the clock"
        " of the steps is 4 s, expected 5 s (tolerance 240 ms) by `windows_time`: the same by the host's clock"
        " (pair device_clock)"
        for rank in (0, 1)
    ]


@pytest.mark.parametrize("by_s", [2.0, -3600.0])
def test_a_clock_that_was_set_meanwhile_is_no_contradiction(tmp_path: Path, by_s: float) -> None:
    """The agent saw that it was: its two clocks went apart."""
    at = 5.0
    training = with_records(lambda _, when, event, its: (when + (by_s if when > at else 0), event, its))
    round_dir = write(training, tmp_path / "round1")
    (path,) = round_dir.glob("*/milestones.json")
    assert measure(round_dir).failures
    body = json.loads(path.read_text())
    for its in body["ranks"].values():
        for both in its.values():
            for moment in both.values() if isinstance(both, dict) else ():
                moment[1] += round(1000 * by_s) if moment[0] > 5000 + at else 0
    path.write_text(json.dumps(body))
    assert measure(round_dir).failures == ()


@pytest.mark.parametrize(("model_s", "wrong"), [(14.2, set()), (14.4, {"evaluation"})])
def test_a_host_lost_in_an_evaluation_is_no_contradiction(tmp_path: Path, model_s: float, wrong: set[str]) -> None:
    round_dir = write(finished("eval_model_time")(model_s), tmp_path / "round1")
    assert contradicted(measure(round_dir)) == {"evaluation"}
    silence = {"host": "localhost", "from_ms": START_MS + 4000, "until_ms": START_MS + 8000}
    edit_json(round_dir / "round.json", silences=[silence])
    assert contradicted(measure(round_dir)) == wrong


# -- what p_core leaves out: bounds that a vendor's own figures could loosen, reckoned by hand ---------------

# Two cards train 100 measured steps of 2 x 10 samples in 1 s each, and evaluate 50 samples on each card.
FINISHED: dict[str, Any] = {
    "raw_train_time": 150.0, "train_no_eval_time": 140.0, "pure_training_computing_time": 105.0, "p_core": 20.0,
    "measured_steps": 100, "measured_samples": 2000, "warmup_steps": 5, "forward_time": 0.3, "compile_time": 8.0,
    "eval_samples": 50, "eval_time": 10.0, "eval_model_time": 2.0, "input_wait_time": 1.0, "check_time": 0.0,
    "save_time": 0.0,
}  # fmt: skip
ONCE = 0.02 * 150


def most(pair: str, config: dict[str, Any] | None = None, *, untrained: bool = True, **finished: Any) -> float:
    """Return the most seconds that a pair allows for a part."""
    log = RankLog(0, Path("rank0.out.log"), finished={**FINISHED, **finished})
    log.untrained = Evaluation(0, 0, 0.0, {}) if untrained else None
    log.totals.longest_evaluation_s = 6.0
    rank = RankFigures(config or {}, 2, log, left_out=LeftOutTimeLimits(0.2, 3.0, 0.2, 0.05))
    (found,) = [item for item in left_out.PAIRS if item.name == pair]
    bounds = found.of(rank)
    assert bounds is not None
    return bounds.most


@pytest.mark.parametrize(
    ("forward_s", "counted_s"),
    [(0.3, 0.3), (0.5, 0.5), (0.9, 0.5), (None, 1.0)],
    ids=["a third", "half", "more than half", "one graph"],
)
def test_the_forward_pass_counts_as_at_most_half_a_step(forward_s: float | None, counted_s: float) -> None:
    assert most("evaluation", forward_time=forward_s) == pytest.approx(3.0 * 50 / 10 * counted_s + ONCE)


def test_a_start_that_ends_within_its_warm_up_has_no_step_to_compare() -> None:
    short = {**FINISHED, "measured_steps": 0, "measured_samples": 0, "p_core": None}
    rank = RankFigures(
        {}, 2, RankLog(0, Path("rank0.out.log"), finished=short), left_out=LeftOutTimeLimits(0.2, 3.0, 0.2, 0.05)
    )
    compared = {pair.name for pair in left_out.PAIRS if pair.of(rank)}
    assert "waiting" in compared
    assert not compared & {"warm_up", "evaluation"}


def test_compiling_checks_checkpoints_and_a_warm_up_take_time_only_where_they_happen() -> None:
    plain = most("evaluation")
    assert most("evaluation", {"compile": True}) == plain
    assert most("evaluation", untrained=False) == plain
    assert most("evaluation", {"compile": True}, untrained=False) == plain + 6.0
    assert most("evaluation", {"compile": True}, untrained=False, compile_time=1.0) == plain + 1.0
    assert (most("checking"), most("checking", {"replica_check_steps": 10})) == (7.5, 75.0)
    assert most("saving") == 0
    assert most("saving", {"checkpoint_steps": 10}) == most("saving", {"failure_interval_s": 9e4}) == 75.0
    assert most("warm_up") == pytest.approx(5.0 + 15.0)
    assert most("warm_up", {"compile": True}) == pytest.approx(5.0 + 15.0 + 8.0)


# -- a log belongs to one round: what it repeats of what its rank was given, when it was written, where it ends ---

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
