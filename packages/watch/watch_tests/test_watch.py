"""``flagperf watch``: what it shows of a run's directory and beside a real run, without and with a terminal."""

import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pytest_flagperf.stored import live_record
from pytest_flagperf_watch.curves import plot, sparkline
from pytest_flagperf_watch.follow import DIED, ENDED, REMOVED, RUNS, SILENT, FollowedRun
from pytest_flagperf_watch.state import FAILED, PASSED, RUNNING, UNFINISHED, WAITING
from pytest_flagperf_watch.view import Frame
from tests.helpers.command_line import Capture, errors_of, flagperf, output_of
from tests.helpers.live_runs import CASES, LiveRun, training_run
from tests.helpers.pseudo_terminal import Terminal
from tests.helpers.stored_runs import run_of
from tests.plugin.conftest import Going, Toy
from tests.plugin.conftest import toy as toy  # a fixture


@pytest.fixture
def installed(install: Callable[[str], None]) -> None:
    install("watch")


def followed(run: LiveRun, alive: bool | None = True) -> FollowedRun:
    follower = FollowedRun(run.path, clock=run.clock, monotonic=run.clock, alive=lambda _: alive)
    follower.poll()
    return follower


def frame(run: FollowedRun, now: float, width: int = 120, height: int = 40, encoding: str = "utf-8") -> str:
    """Return what a terminal of this size shows, without colours."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, height=height, highlight=False)
    console.print(Frame(run, "q or Ctrl-C: leave", now=now), height=height)
    file.flush()
    assert isinstance(file.buffer, io.BytesIO)
    return file.buffer.getvalue().decode(encoding)


def test_the_frame_shows_cases_curves_ranks_devices_and_notes(tmp_path: Path) -> None:
    run = training_run(tmp_path / "run1")
    text = frame(followed(run), run.clock.now)
    for part in (
        "run1  5 min 3 s  running as pid",
        "3 cases: 1 running, 1 failed, 1 waiting",
        "glm:pytorch:A100:2:8:3 round 1  3 min 25 s  step 400  estimated 5 min 0 s left",
        "loss 0.411",
        "12,168 images/s",
        "accuracy 0.865 of 0.9",
        "power 10,296 W",
        "gpu1  ranks 0-7 training step 399-400, rank 3 slow 1.42x",
        "gpu2  ranks 8-15 training step 400",
        "8 devices: 640-647 W, 60-67 C, 97 %, memory 68 GiB of 80 GiB",
        "bert:pytorch:A100:1:8:1 round 1 failed: rank 3 was killed by SIGKILL",
        "q or Ctrl-C: leave",
    ):
        assert part in text
    assert any("\u2800" <= char <= "\u28ff" for char in text)


@pytest.mark.parametrize(("width", "height"), [(200, 60), (100, 30), (80, 24), (60, 20), (40, 12), (20, 8)])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_frame_fits_every_terminal(width: int, height: int, encoding: str, tmp_path: Path) -> None:
    run = training_run(tmp_path / "run1")
    lines = frame(followed(run), run.clock.now, width, height, encoding).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= height
    assert lines[0].startswith("run1")
    assert any(line.startswith("glm:pytorch:A100"[: width - 5]) for line in lines)


def test_many_cases_are_counted_where_there_is_no_room(tmp_path: Path) -> None:
    cases = tuple(f"toy:plain:CPU:1:{cards}:1" for cards in range(1, 201))
    run = LiveRun(tmp_path / "run1", cases)
    run.begin(run.main, cases[150])
    run.train(run.main, cases[150], 50)
    text = frame(followed(run), run.clock.now, 100, 30)
    assert "200 cases: 1 running, 199 waiting" in text
    assert "toy:plain:CPU:1:151:1" in text
    assert "more cases: " in text


def test_a_wait_and_a_build_are_shown_with_their_amounts(tmp_path: Path) -> None:
    run = LiveRun(tmp_path / "run1")
    run.begin(run.main, CASES[0])
    run.main.note("phase", lasting=True, text=f"{CASES[0]} waits: device 0 is used by run7 of ann")
    run.clock.now += 7
    text = frame(followed(run), run.clock.now)
    assert "glm:pytorch:A100:2:8:3 round 1  7 s  waits: device 0 is used by run7 of ann  (7 s)" in text
    run.main.note("phase_end")
    run.clock.now += 1
    run.main.note("activity", text="gpu1: copying uv: 12 of 48 MB")
    run.clock.now += 30
    text = frame(followed(run), run.clock.now)
    assert "gpu1: copying uv: 12 of 48 MB  (30 s)" in text


def test_a_silent_rank_is_named(tmp_path: Path) -> None:
    run = LiveRun(tmp_path / "run1")
    run.begin(run.main, CASES[0])
    run.train(run.main, CASES[0], 20)
    beats = {"0": {"step": 30, "phase": 1, "idle_s": 0.1}, "1": {"step": 20, "phase": 2, "idle_s": 95.0}}
    run.clock.now += 20
    run.main.note("host", host="gpu1", values={"ranks": beats, "slow": {}})
    assert "rank 1 silent for 95 s" in frame(followed(run), run.clock.now)


def states(run: LiveRun) -> list[str]:
    return [case.state for case in followed(run).state.cases.values()]


def test_a_case_waits_runs_and_passes_or_fails(tmp_path: Path) -> None:
    run = LiveRun(tmp_path / "run1")
    assert states(run) == [WAITING] * 3
    run.begin(run.main, CASES[0])
    assert states(run) == [RUNNING, WAITING, WAITING]
    run.main.note("round_end", state="finished")
    run.main.note("test", case=CASES[0], test="test_converges", outcome="passed", sentences=[])
    run.begin(run.main, CASES[1])
    run.main.note("round_end", state="failed", sentence="rank 0 was killed")
    assert states(run) == [PASSED, FAILED, WAITING]


@pytest.mark.parametrize("number", [2, 3])
def test_a_case_that_was_interrupted_has_not_passed(tmp_path: Path, number: int) -> None:
    """In its third round, or after its second."""
    run = LiveRun(tmp_path / "run1")
    for done in range(1, number + 1):
        run.begin(run.main, CASES[0], done)
        run.main.note("round_end", state="interrupted" if done == 3 else "finished")
        if done < 3:
            run.main.note("test", case=CASES[0], test=f"test_converges[round{done}]", outcome="passed", sentences=[])
    assert states(run)[0] == (UNFINISHED if number == 3 else PASSED)
    run.end(2)
    assert states(run) == [UNFINISHED, WAITING, WAITING]


def test_a_short_round_of_one_card_belongs_to_its_case(tmp_path: Path) -> None:
    run = LiveRun(tmp_path / "run1")
    run.main.note("round", case="glm:pytorch:A100:1:1:1", folder="glm_pytorch_A100_2_8_3/one_card")
    follower = followed(run)
    assert [case.state for case in follower.state.cases.values()] == [RUNNING, WAITING, WAITING]
    assert "glm:pytorch:A100:1:1:1 one_card" in frame(follower, run.clock.now)


def test_a_resumed_run_begins_again(tmp_path: Path) -> None:
    run = training_run(tmp_path / "run1")
    run.end(2)
    run.close()
    again = LiveRun(tmp_path / "run1")
    again.clock.now = run.clock.now + 100
    again.main.note("line", text="resumed")
    follower = followed(again)
    assert follower.status().word == RUNS
    assert follower.state.main is not None
    assert not follower.state.main.has_ended


@pytest.mark.parametrize(
    ("alive", "silent_s", "word", "text"),
    [
        (True, 0, RUNS, "running as pid"),
        (True, 100, SILENT, "no sign of life of its process"),
        (False, 0, DIED, "died: its process (pid"),
        (None, 0, RUNS, "running as pid"),
        (None, 100, DIED, "probably died: no sign of life"),
    ],
)
def test_a_killed_controller_is_found(alive: bool | None, silent_s: int, word: str, text: str, tmp_path: Path) -> None:
    run = training_run(tmp_path / "run1")
    follower = followed(run, alive)
    run.clock.now += silent_s
    status = follower.status()
    assert status.word == word
    assert text in status.text
    assert status.text in " ".join(frame(follower, run.clock.now, 200).split())


def test_a_sign_of_life_counts_even_if_the_clocks_differ(tmp_path: Path) -> None:
    run = training_run(tmp_path / "run1")
    for number in range(30):
        os.utime(run.file(), (number, number))  # the disk's clock is years behind
        run.clock.now += 10
        if number == 0:
            follower = followed(run, alive=None)
        follower.poll()
    assert follower.status().word == RUNS


def test_the_end_of_a_run_and_its_removal(tmp_path: Path) -> None:
    run = training_run(tmp_path / "run1")
    follower = followed(run)
    run.end(1)
    follower.poll()
    assert follower.status().word == ENDED
    unused = LiveRun(tmp_path / "run2")
    follower = followed(unused)
    unused.file().unlink()
    unused.file().parent.rmdir()
    unused.path.rmdir()
    follower.poll()
    assert follower.status().word == REMOVED


def test_a_dead_worker_is_reported(tmp_path: Path) -> None:
    follower = followed(training_run(tmp_path / "run1"))
    assert follower.notes() == []
    worker = follower.state.processes["gw0"]
    worker.process = {**worker.process, "t": 1.0}
    follower._alive = lambda process: process["t"] != 1.0
    assert [note.partition(" (")[0] for note in follower.notes()] == ["worker gw0 died"]


def test_any_values_of_an_entry_are_accepted(tmp_path: Path) -> None:
    """Entries of a changed file have any values: none of them stops the view, or controls the terminal."""
    run = training_run(tmp_path / "run1")
    run.close()
    hostile = "\x1b[2J\x07 [bold]x[/bold]\nnext"
    values: list[Any] = [None, True, -1, 10**400, 1e308, "x" * 1000, hostile, [], [1], {}, {"0": 1}, {"0": {"a": []}}]
    keys = ["case", "folder", "text", "state", "sentence", "step", "loss", "metric", "target", "throughput", "ranks",
            "slow", "samples", "host", "cases", "outcome", "sentences", "test", "exit", "pid", "machine", "phase",
            "elapsed_s", "time_left_s", "metric_name", "sample_unit"]  # fmt: skip
    kinds = [
        live_record.CASES, live_record.ROUND, live_record.PHASE, live_record.PROGRESS, live_record.HOST,
        live_record.NOTE, live_record.TEST, live_record.ROUND_END, "new",
    ]  # fmt: skip
    with run.file("gw0").open("a") as file:
        for value in values:
            for kind in kinds:
                entry = {"t": run.clock.now, "kind": kind, **dict.fromkeys(keys, value)}
                file.write(json.dumps(entry) + "\n")
                file.write(
                    json.dumps({**entry, "host": "h", "folder": "a/round1", "samples": {"devices": value}}) + "\n"
                )
    text = frame(followed(run), run.clock.now)
    assert not {"\x1b", "\x07"} & {*text}
    assert "[bold]x[/bold]" in text


def test_curves() -> None:
    assert sparkline([0, 1, 2, 3], 4, plain=False) == "▁▃▆█"
    assert sparkline([5, 5, 5], 3, plain=True).isascii()
    assert sparkline([], 10, plain=False) == ""
    assert plot([0, 1, 2, 3], 2, 1, plain=False) == ["⡠⠊"]
    rising = plot([0, 1, 2, 3], 4, 4, plain=True)
    assert rising == ["   *", "  * ", " *  ", "*   "]
    for values in ([], [1.0], [1e100, -1e100], list(range(1000))):
        for plain in (True, False):
            assert all(len(line) <= 30 for line in plot(values, 30, 4, plain=plain))


@pytest.mark.usefixtures("installed")
def test_a_run_that_ended_shows_its_results_and_the_exit_code(tmp_path: Path, capsys: Capture) -> None:
    passed = run_of(tmp_path / "reports" / "run1")
    assert "1 of 1 case passed" in output_of(capsys, "watch", passed)
    record = LiveRun(passed, ("toy:pytorch:CPU:1:1:1",))
    record.end(0)
    record.close()
    assert "1 of 1 case passed" in output_of(capsys, "watch", tmp_path / "reports")
    failed = run_of(tmp_path / "reports" / "run2", "did_not_learn")
    assert "0 of 1 case passed, 1 failed" in output_of(capsys, "watch", failed, code=1)


@pytest.mark.usefixtures("installed")
def test_a_killed_run_is_shown_as_such(tmp_path: Path, capsys: Capture) -> None:
    run = LiveRun(tmp_path / "run1")
    run.close()
    text = run.file().read_text().replace('"since": ', '"since": 1')
    run.file().write_text(text)
    assert "the run died: its process" in output_of(capsys, "watch", run.path, code=1)
    assert "died" in output_of(capsys, "watch", run.path, "--once", code=1)


@pytest.mark.usefixtures("installed")
def test_errors_name_folder_and_reason(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert errors_of(capsys, "watch", tmp_path / "nothing") == [f"{tmp_path / 'nothing'}: no such directory"]
    (tmp_path / "empty").mkdir()
    assert errors_of(capsys, "watch", tmp_path / "empty")[0].startswith(f"{tmp_path / 'empty'}: not a run")
    monkeypatch.chdir(tmp_path)
    assert errors_of(capsys, "watch") == [f"{tmp_path}/reports: no runs; pass RUN, a run directory"]
    newer = LiveRun(tmp_path / "reports" / "run3")
    newer.close()
    newer.file().write_text(newer.file().read_text().replace('"schema": 1', '"schema": 9'))
    assert "was written by a newer pytest-flagperf" in errors_of(capsys, "watch")[0]


@pytest.mark.usefixtures("installed")
def test_the_newest_run_is_the_default(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("run20260101000000", "run20260102000000", "run20260102000000-2"):
        LiveRun(tmp_path / "reports" / name).main.note("line", text="x")
    (tmp_path / "reports" / "run30000101000000").mkdir()  # not a run
    assert "run20260102000000-2" in output_of(capsys, "watch", "--once")


@pytest.mark.usefixtures("installed")
def test_without_a_terminal_the_present_state_is_shown_once(tmp_path: Path, capsys: Capture) -> None:
    run = training_run(tmp_path / "run1")
    assert flagperf("watch", run.path) == 0
    out, err = capsys.readouterr()
    assert "3 cases: 1 running, 1 failed" in out
    assert err == "expected a terminal to follow the run; this is its state now\n"


# -- beside a real run, in a terminal ----------------------------------------------------------------------------

SLEEP = "time.sleep(config.step_s)"
WAIT = "time.sleep(config.step_s if step < 100 or Path({go!r}).exists() else 0.2)"


@pytest.fixture
def going_run(toy: Toy, installed: None) -> Iterator[Going]:
    """A run of three cases in three workers, whose record exists; they are slow until the file ``go`` exists."""
    toy.suite("gamma")
    for program in toy.root.glob("suites/*/plain/run_pretraining.py"):
        text = program.read_text()
        assert SLEEP in text
        program.write_text(text.replace(SLEEP, WAIT.format(go=str(toy.root / "go"))))
    settings = ("--set=learning_rate=0.002", "--set=max_steps=1000", "--set=step_s=0.02")
    going = toy.start("suites", "-m", "converges", "-k", "1x1", "-n", "3", *settings)
    going.wait_for(lambda: list(toy.root.glob("reports/run*/live/*.jsonl")), "the live record")
    yield going
    print(going.text)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


@pytest.mark.slow
def test_three_cases_are_watched_to_their_end(going_run: Going, terminals: list[Terminal], toy: Toy) -> None:
    watch = ["flagperf", "watch"]
    terminals.append(wide := Terminal(watch, cwd=toy.root))
    old = {"NO_COLOR": "1", "PYTHONIOENCODING": "ascii"}
    terminals.append(narrow := Terminal(watch, columns=60, rows=16, cwd=toy.root, env=old))
    text = wide.wait_for(lambda text: "3 running" in text and text.count("  loss ") == 3)
    for name in ("alpha", "beta", "gamma"):
        assert f"{name}:plain:CPU:1:1:1 round 1" in text
    assert any("\u2800" < char <= "\u28ff" for char in text)
    narrow.wait_for(lambda text: "3 running" in text and "loss" in text)
    assert narrow.text().isascii()
    narrow.type("q")
    assert narrow.end() == 0
    assert going_run.process.poll() is None
    (toy.root / "go").touch()
    assert wide.end(120) == 0
    assert "flagperf: 3 of 3 cases passed" in " ".join(wide.text().split())
    assert going_run.wait(60) == 0
    for part in ("preflight: 3 cases on 1 host", "] alpha:plain:CPU:1:1:1 round 1  step 1  loss "):
        assert part in going_run.text
    assert going_run.text.count("  finished  after ") == 3
