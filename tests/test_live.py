"""The terminal output during a round."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_flagperf.report.terminal.live import Live, progress_line


@dataclass(frozen=True)
class Progress:
    case: str = "toy:plain:CPU:1:1:1"
    round: int = 1
    phase: str = "init"
    step: int = 0
    loss: float | None = None
    metric: float | None = None
    metric_name: str = "accuracy"
    target: float | None = 0.9
    throughput: float | None = None
    sample_unit: str = "images"
    time_left_s: float | None = None


class Terminal:
    """Collects what is written, with a clock of its own."""

    def __init__(self) -> None:
        self.text, self.now = "", 0.0

    def live(self, *, live: bool = True, quiet: bool = False, follow: bool = False, name: str | None = None) -> Live:
        def write(text: str) -> None:
            self.text += text

        return Live(write, width=80, live=live, quiet=quiet, follow=follow, name=name, clock=lambda: self.now)


def test_the_line_shows_step_loss_metric_throughput_and_remaining_time() -> None:
    progress = Progress(phase="training", step=1200, loss=0.5, metric=0.81, throughput=1234.0, time_left_s=75)
    assert progress_line(progress) == (
        "toy:plain:CPU:1:1:1 round 1  step 1,200  loss 0.5  accuracy 0.81 of 0.9  1,234 images/s"
        "  estimated 1 min 15 s left"
    )
    assert progress_line(progress, 90).startswith("toy 1x1 #1  step 1,200")
    assert len(progress_line(progress, 40)) == 40


def test_unknown_values_are_left_out() -> None:
    assert progress_line(Progress()) == "toy:plain:CPU:1:1:1 round 1  init"
    assert "loss" not in progress_line(Progress(step=3))


def test_progress_is_overwritten_at_a_limited_rate() -> None:
    terminal = Terminal()
    live = terminal.live()
    for step in range(1, 11):
        live.progress(Progress(step=step))
        terminal.now += 0.05
    assert terminal.text.count("\r") == 3
    assert "\n" not in terminal.text


def test_no_progress_without_a_terminal_and_no_output_when_quiet() -> None:
    no_terminal = Terminal()
    no_terminal.live(live=False).progress(Progress(step=1))
    assert no_terminal.text == ""
    quiet = Terminal()
    live = quiet.live(quiet=True, follow=True)
    live.progress(Progress(step=1))
    live.note("building")
    live.log(0, "line")
    assert quiet.text == ""


def test_a_worker_that_shares_the_terminal_writes_few_permanent_lines() -> None:
    terminal = Terminal()
    live = terminal.live(name="gw1")
    for step in range(1, 22):
        live.progress(Progress(step=step))
        terminal.now += 1
    assert terminal.text.count("\n") == 3
    assert terminal.text.startswith("[gw1] toy:plain:CPU:1:1:1 round 1  step 1")
    assert "\r" not in terminal.text


def test_a_note_clears_the_progress_line_first() -> None:
    terminal = Terminal()
    live = terminal.live()
    live.progress(replace(Progress(), step=1))
    live.note("waiting")
    assert terminal.text.endswith("\r\x1b[Kwaiting\n")
