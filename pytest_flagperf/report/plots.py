"""Curves of a training as SVG to stand inside a page: text stays text, and its colour is the page's own."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from pytest_flagperf.results.outcome import Outcome
from pytest_flagperf.results.units import quantity

MAX_POINTS = 300
"""Of one line: more cannot be told apart at the picture's width, and the page stays small."""
_SIZE = (5.2, 2.5)
_NAME_AT_MOST = 40
# Readable on white and on near black, and by colour-blind people (after Okabe and Ito, without the darkest).
_COLOURS = ("#2b87cf", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_STYLES = ("-", "--", "-.", ":")
_INK = "#123456"  # replaced by currentColor: a colour that no line has
_RC = {
    "svg.fonttype": "none",
    "svg.hashsalt": "flagperf",
    "path.simplify": True,
    "font.family": "sans-serif",
    "font.size": 9.0,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), _INK
    ),
}


@dataclass(frozen=True)
class Line:
    """``name`` is what the legend says; points that are not numbers are gaps."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]

    def drawable(self) -> bool:
        return any(math.isfinite(value) for value in self.y)


@dataclass(frozen=True)
class Level:
    """A horizontal line to compare with."""

    name: str
    value: float


def loss(outcomes: Sequence[Outcome]) -> str | None:
    """The training loss over steps, one line per round; None where none was logged."""
    lines = [
        Line(_round(outcome), *_points([(step.step, step.loss) for step in outcome.steps])) for outcome in outcomes
    ]
    return draw("Training loss", "step", "loss", lines)


def metric(outcomes: Sequence[Outcome]) -> str | None:
    """The suite's metric over steps against the target, the untrained model first."""
    if not outcomes:
        return None
    target = outcomes[0].target
    lines = [Line(_round(outcome), *_points(_evaluated(outcome))) for outcome in outcomes]
    levels = []
    if target.value is not None and math.isfinite(target.value):
        levels = [Level(f"target {quantity(target.value, target.unit)}", target.value)]
    return draw(f"{target.name} against its target", "step", target.name, lines, levels)


def throughput(outcomes: Sequence[Outcome]) -> str | None:
    """Samples per second over steps, all cards together."""
    if not outcomes:
        return None
    lines = [
        Line(_round(outcome), *_points([(step.step, step.throughput) for step in outcome.steps]))
        for outcome in outcomes
    ]
    return draw("Throughput", "step", outcomes[0].rate_unit, lines, floor=0.0)


def draw(
    title: str,
    x_name: str,
    y_name: str,
    lines: Sequence[Line],
    levels: Sequence[Level] = (),
    floor: float | None = None,
) -> str | None:
    """One picture, the same bytes for the same lines; None where there is nothing to draw."""
    lines = [line for line in lines if line.drawable()]
    if not lines:
        return None
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_RC), warnings.catch_warnings():
        # The page's font has the glyphs that the one used for measuring lacks.
        warnings.filterwarnings("ignore", r"Glyph .* missing from font", UserWarning)
        figure = Figure(figsize=_SIZE, layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        _plot(axes, lines, levels)
        if floor is not None:
            axes.set_ylim(bottom=floor)
        axes.set_xlabel(_plain(x_name))
        axes.set_ylabel(_plain(y_name))
        _legend(figure, axes, len(lines) + len(levels))
        stream = io.StringIO()
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _inline(stream.getvalue(), title)


def _plot(axes: Any, lines: Sequence[Line], levels: Sequence[Level]) -> None:
    for number, line in enumerate(lines):
        # Colour goes round first, then the dashes change: several lines differ in black and white too.
        colour, style = _COLOURS[number % len(_COLOURS)], _STYLES[number // len(_COLOURS) % len(_STYLES)]
        lonely = sum(map(math.isfinite, line.y)) < 30
        axes.plot(
            line.x,
            line.y,
            label=_plain(line.name),
            color=colour,
            linestyle=style,
            linewidth=1.4,
            marker="o" if lonely else None,
            markersize=2.5,
        )
    for level in levels:
        axes.axhline(level.value, label=_plain(level.name), color=_INK, linestyle=(0, (4, 3)), linewidth=1)
    axes.margins(y=0.08)
    axes.grid(visible=True, alpha=0.2, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.xaxis.get_major_locator().set_params(integer=True)


def _legend(figure: Any, axes: Any, entries: int) -> None:
    if entries > 1:
        # Below the axes: no curve is hidden, however many rounds there are.
        figure.legend(
            *axes.get_legend_handles_labels(),
            loc="outside lower center",
            ncols=min(entries, 4),
            frameon=False,
            fontsize=8,
        )


def _inline(svg: str, title: str) -> str:
    """The bare <svg> element: no prologue, no page-wide style, no fixed size, the ink as the page's."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style[^>]*>.*?</style>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<svg ([^>]*?)width="[^"]*"( ?)', r"<svg \1", svg, count=1)
    svg = re.sub(r'(<svg [^>]*?)height="[^"]*"( ?)', r"\1", svg, count=1)
    label = f'role="img" aria-label="{escape(_printable(title))}" class="flagperf-plot" '
    joins = 'style="stroke-linejoin: round; stroke-linecap: butt" '
    svg = svg.replace("<svg ", f"<svg {label}{joins}", 1)
    return re.sub(r"\n\s*", "\n", svg).replace(_INK, "currentColor")


def _evaluated(outcome: Outcome) -> list[tuple[int, float]]:
    found = [outcome.untrained] if outcome.untrained else []
    found += outcome.evaluations
    return [(item.step, item.metrics.get(outcome.target.name, math.nan)) for item in found]


def _points(points: Sequence[tuple[int, float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    stride = max(1, -(-len(points) // MAX_POINTS))
    kept = [*points[::stride], *(points[-1:] if (len(points) - 1) % stride else [])]
    # An infinity has no place on an axis; it is a gap, as NaN is.
    return tuple(float(x) for x, _ in kept), tuple(y if math.isfinite(y) else math.nan for _, y in kept)


def _round(outcome: Outcome) -> str:
    return f"round {outcome.round}"


def _plain(text: str) -> str:
    """A text for the drawing to take as it stands: no formulas, no hidden labels, no page wide."""
    text = _printable(text)
    text = (text if len(text) <= _NAME_AT_MOST else f"{text[: _NAME_AT_MOST - 1]}…").replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
