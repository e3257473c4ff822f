"""What a person at a terminal sees."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_flagperf.report.terminal.live import Live, line


@dataclass(frozen=True)
class Where:
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


def test_the_line_says_step_loss_metric_throughput_and_time_left() -> None:
    where = Where(phase="training", step=1200, loss=0.5, metric=0.81, throughput=1234.0, time_left_s=75)
    said = line(where)
    assert said == (
        "toy:plain:CPU:1:1:1 round 1  step 1,200  loss 0.5  accuracy 0.81 of 0.9  1,234 images/s"
        "  estimated 1 min 15 s left"
    )
    assert line(where, 90).startswith("toy 1x1 #1  step 1,200")
    assert len(line(where, 40)) == 40


def test_what_is_not_known_is_not_said() -> None:
    assert line(Where()) == "toy:plain:CPU:1:1:1 round 1  init"
    assert "loss" not in line(Where(step=3))


def test_progress_is_written_over_and_not_too_often() -> None:
    terminal = Terminal()
    live = terminal.live()
    for step in range(1, 11):
        live.progress(Where(step=step))
        terminal.now += 0.05
    assert terminal.text.count("\r") == 3
    assert "\n" not in terminal.text


def test_nothing_passing_is_said_away_from_a_terminal_and_nothing_at_all_when_quiet() -> None:
    away = Terminal()
    away.live(live=False).progress(Where(step=1))
    assert away.text == ""
    quiet = Terminal()
    live = quiet.live(quiet=True, follow=True)
    live.progress(Where(step=1))
    live.note("building")
    live.log(0, "line")
    assert quiet.text == ""


def test_one_of_several_on_a_terminal_says_few_lines_that_stay() -> None:
    terminal = Terminal()
    live = terminal.live(name="gw1")
    for step in range(1, 22):
        live.progress(Where(step=step))
        terminal.now += 1
    assert terminal.text.count("\n") == 3
    assert terminal.text.startswith("[gw1] toy:plain:CPU:1:1:1 round 1  step 1")
    assert "\r" not in terminal.text


def test_a_note_does_not_land_in_a_passing_line() -> None:
    terminal = Terminal()
    live = terminal.live()
    live.progress(replace(Where(), step=1))
    live.note("waiting")
    assert terminal.text.endswith("\r\x1b[Kwaiting\n")
