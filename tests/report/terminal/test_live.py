"""The terminal output during a round."""

from dataclasses import replace
from functools import partial
from typing import Any

from flagperf_driver import events
from pytest_flagperf.engines.agents.round_messages import Tracker
from pytest_flagperf.progress import NoteKind, RoundProgress
from pytest_flagperf.report.terminal.live import PlainLines, TerminalLines, rank_logs
from pytest_flagperf.report.terminal.progress import progress_line

ROUND = {"case": "toy:plain:CPU:1:1:1", "folder": "toy_plain_CPU_1_1_1/round1"}
Progress = partial(
    RoundProgress,
    case="toy:plain:CPU:1:1:1", round=1, phase="init", metric_name="accuracy", target=0.9, sample_unit="images",
)  # fmt: skip


class Terminal:
    """Collects what the notes of a run write on a terminal or, if it is ``plain``, into a log."""

    def __init__(self, name: str | None = None, *, plain: bool = False) -> None:
        def write(text: str) -> None:
            self.text += text

        self.text, self.now = "", 0.0
        kind = PlainLines if plain else partial(TerminalLines, width=80)
        self._subscriber = kind(write, name, lambda: self.now).subscriber

    def note(self, kind: NoteKind, **values: Any) -> None:
        if take := self._subscriber.get(kind):
            take(**values)

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            self.note("tick")


def test_the_line_shows_what_is_known_of_step_loss_metric_throughput_and_time() -> None:
    progress = Progress(phase="training", step=1200, loss=0.5, metric=0.81, throughput=1234.0, time_left_s=75)
    assert progress_line(progress) == (
        "toy:plain:CPU:1:1:1 round 1  step 1,200  loss 0.5  accuracy 0.81 of 0.9  1,234 images/s"
        "  estimated 1 min 15 s left"
    )
    assert progress_line(progress, 90).startswith("toy 1x1 #1  step 1,200")
    narrow = progress_line(progress, 40)
    assert len(narrow) <= 40
    assert progress_line(progress, 90).startswith(narrow + "  "), "no part is cut"
    assert progress_line(Progress()) == "toy:plain:CPU:1:1:1 round 1  init"
    assert "loss" not in progress_line(Progress(step=3))


def test_the_remaining_time_is_estimated_from_the_steps_after_the_first_when_they_took_a_while() -> None:
    tracker = Tracker(RoundProgress("toy:plain:CPU:1:1:1", 1), {"max_steps": 100, "max_time_s": 3600}, 0)
    tracker.take(events.TRAIN_START, {}, 0)
    # The first step also compiles.
    estimates = [tracker.take(events.STEP_END, {"step": one}, 30_000 + 2000 * one).time_left_s for one in range(1, 9)]
    assert estimates == [None] * 5 + [188.0, 186.0, 184.0]


def test_progress_is_overwritten_at_a_limited_rate() -> None:
    terminal = Terminal()
    for step in range(1, 11):
        terminal.note("progress", progress=Progress(step=step))
        terminal.now += 0.05
    assert terminal.text.count("\r") == 3
    assert "\n" not in terminal.text


def test_records_of_the_log_are_written_on_request_only() -> None:
    for records in (False, True):
        written: list[str] = []
        log = rank_logs(written.append, records=records)["log"]
        log(rank=0, text="epoch 1 begins")
        log(rank=0, text='[PerfLog] {"event": "TRAIN_START", "value": {}}')
        assert [text.split()[2] for text in written] == ["epoch", *["[PerfLog]"] * records]


def test_a_worker_writes_few_permanent_lines_and_a_note_clears_the_progress_line() -> None:
    terminal = Terminal("gw1")
    for step in range(1, 22):
        terminal.note("progress", progress=Progress(step=step))
        terminal.now += 1
    assert terminal.text.count("\n") == 3
    assert terminal.text.startswith("[gw1] toy:plain:CPU:1:1:1 round 1  step 1")
    assert "\r" not in terminal.text
    terminal = Terminal()
    terminal.note("progress", progress=replace(Progress(), step=1))
    terminal.note("line", text="waiting")
    assert terminal.text.endswith("\r\x1b[Kwaiting\n")


def test_a_terminal_shows_why_a_round_failed_when_it_fails() -> None:
    terminal = Terminal()
    terminal.note("round", **ROUND)
    for state in ("finished", "failed"):
        terminal.note("round_end", state=state, sentence="rank 0 was killed")
    assert terminal.text == "toy:plain:CPU:1:1:1 round 1  failed: rank 0 was killed\n"


def test_without_a_terminal_each_phase_has_a_line() -> None:
    terminal = Terminal(plain=True)
    terminal.note("phase", text="preflight: 1 case on 1 host")
    terminal.note("phase_end")
    terminal.note("round", **ROUND)
    terminal.note("line", text="building the plain environment")
    for progress in (
        Progress(phase="starting"),
        Progress(phase="training", elapsed_s=2),
        Progress(phase="training", step=1, loss=0.5, elapsed_s=3, time_left_s=90),
        Progress(phase="training", step=2, loss=0.4, elapsed_s=4, metric=0.5),
        Progress(phase="training", step=9, loss=0.3, elapsed_s=5, metric=0.95),
        Progress(phase="finished", step=9, loss=0.3, elapsed_s=6, metric=0.95),
    ):
        terminal.note("progress", progress=progress)
    terminal.note("round_end", state="finished")
    assert terminal.text.splitlines() == [
        "preflight: 1 case on 1 host",
        "toy:plain:CPU:1:1:1 round 1  starting",
        "building the plain environment",
        "toy:plain:CPU:1:1:1 round 1  training  after 2 s",
        "toy:plain:CPU:1:1:1 round 1  step 1  loss 0.5  estimated 1 min 30 s left  after 3 s",
        "toy:plain:CPU:1:1:1 round 1  step 9  loss 0.3  accuracy 0.95 of 0.9  finished  after 6 s",
    ]


def test_without_a_terminal_a_silent_phase_writes_a_line_a_minute() -> None:
    terminal = Terminal(plain=True)
    terminal.note("round", **ROUND)
    terminal.note("activity", text="Prepared 12 of 40 packages")
    terminal.wait(125)
    terminal.note("phase_end")
    terminal.note("progress", progress=Progress(phase="training", step=1, elapsed_s=130))
    terminal.wait(61)
    terminal.note("round_end", state="failed", sentence="rank 0 was killed")
    terminal.wait(200)
    assert terminal.text.splitlines() == [
        "toy:plain:CPU:1:1:1 round 1  starting",
        "toy:plain:CPU:1:1:1 round 1  Prepared 12 of 40 packages  for 1 min 0 s",
        "toy:plain:CPU:1:1:1 round 1  Prepared 12 of 40 packages  for 2 min 0 s",
        "toy:plain:CPU:1:1:1 round 1  step 1  after 2 min 10 s",
        "toy:plain:CPU:1:1:1 round 1  step 1  after 3 min 10 s",
        "toy:plain:CPU:1:1:1 round 1  step 1  failed: rank 0 was killed  after 3 min 11 s",
    ]


def test_without_a_terminal_a_worker_has_its_name_and_evaluations_a_line_a_minute() -> None:
    terminal = Terminal(plain=True)
    for step in range(1, 3601):
        terminal.now += 1
        terminal.note("progress", progress=Progress(phase="training", step=step, metric=step / 10_000, elapsed_s=step))
        terminal.note("tick")
    lines = terminal.text.splitlines()
    assert 55 <= len(lines) <= 61
    assert lines[1] == "toy:plain:CPU:1:1:1 round 1  evaluation: accuracy 0.0061 of 0.9 at step 61  after 1 min 1 s"
    terminal = Terminal("gw1", plain=True)
    terminal.note("round", **ROUND)
    assert terminal.text == "[gw1] toy:plain:CPU:1:1:1 round 1  starting\n"
