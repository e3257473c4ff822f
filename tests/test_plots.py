"""The pictures: small, quiet, the same every time, and readable on any page."""

from __future__ import annotations

import math
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from pytest_flagperf.report import plots
from pytest_flagperf.report.plots import MAX_POINTS, Level, Line, draw
from pytest_flagperf.results.outcome import Outcome, Step
from tests.results_help import recorded

HOSTILE = [
    "<script>alert(1)</script>",
    "\"&'>",
    "$x_1$ $",
    "_hidden",
    "\\alpha{",
    "中文",
    "a" * 300,
    "\x00\x1b[31m",
]


def long(outcome: Outcome, steps: int = 2000) -> Outcome:
    curve = tuple(Step(step, step, step / 10, 2 + math.sin(step * 1.7), 1e6 + step % 7, 1e-3) for step in range(steps))
    return replace(outcome, steps=curve)


def drawn(outcomes: list[Outcome]) -> list[str]:
    return [svg for svg in (plots.loss(outcomes), plots.metric(outcomes), plots.throughput(outcomes)) if svg]


@pytest.mark.parametrize("name", ["converged_1x2", "nan_metric", "crashed_rank", "throughput_only", "hang"])
def test_a_replay_is_drawn_as_far_as_it_went(name: str) -> None:
    outcome = recorded(name)
    for svg in drawn([outcome]):
        assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert bool(plots.loss([outcome])) == bool(outcome.steps)


def test_a_picture_stays_small_however_long_the_training_was() -> None:
    rounds = [replace(long(recorded("converged_1x1")), round=number) for number in (1, 2, 3)]
    assert max(map(len, drawn(rounds[:1]))) < 40_000
    assert max(map(len, drawn(rounds))) < 100_000


def test_the_same_lines_give_the_same_bytes() -> None:
    assert drawn([recorded("converged_1x2")]) == drawn([recorded("converged_1x2")])


def test_text_is_text_in_the_pages_own_colour_and_no_style_leaks_into_the_page() -> None:
    svg = plots.metric([recorded("converged_1x1")])
    assert svg is not None
    assert "target 0.900" in svg
    assert "currentColor" in svg
    for unwanted in ("#000000", "<style", "<?xml", "<!DOCTYPE", "<script", plots._INK, 'pt"'):
        assert unwanted not in svg
    assert "width=" not in svg[: svg.index(">")]


def test_several_lines_can_be_told_apart() -> None:
    lines = [Line(f"round {number}", (0.0, 1.0), (float(number), 2.0)) for number in range(9)]
    svg = draw("many", "step", "loss", lines)
    assert svg is not None
    assert all(colour in svg for colour in plots._COLOURS)
    assert "stroke-dasharray" in svg
    assert all(f"round {number}" in svg for number in range(9))


def test_what_is_not_a_number_is_a_gap() -> None:
    svg = plots.loss([recorded("nan_loss")])
    assert svg is not None
    assert "nan" not in svg.lower()
    nothing = Line("nothing", (1.0, 2.0), (math.nan, math.nan))
    assert draw("empty", "x", "y", [nothing]) is None
    assert draw("level only", "x", "y", [], [Level("target", 1.0)]) is None
    endless = replace(recorded("converged_1x1"), steps=(Step(1, 1, 0.1, math.inf, 1.0, 1.0),) * 3)
    assert plots.loss([endless]) is None
    assert (plots.metric([]), plots.throughput([])) == (None, None)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_only_text(text: str) -> None:
    svg = draw(text, text, text, [Line(text, (1.0, 2.0), (1.0, 2.0)), Line("other", (1.0,), (1.0,))])
    assert svg is not None
    assert "<script" not in svg
    ElementTree.fromstring(svg)


def test_a_line_is_thinned_and_keeps_its_end() -> None:
    x, y = plots._points([(step, float(step)) for step in range(10 * MAX_POINTS + 3)])
    assert len(x) <= MAX_POINTS + 1
    assert x[-1] == y[-1] == 10 * MAX_POINTS + 2


def test_the_drawing_library_is_imported_only_to_draw() -> None:
    code = "import sys, pytest_flagperf.report.html; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
