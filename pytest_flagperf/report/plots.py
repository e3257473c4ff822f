"""Curves of a training and of its hosts as SVG to stand inside a page: text stays text, in the page's own colour."""

from __future__ import annotations

import io
import math
import re
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from statistics import fmean, median
from typing import Any

from pytest_flagperf.results.monitors import Samples, Series
from pytest_flagperf.results.outcome import Outcome
from pytest_flagperf.results.units import quantity

MAX_POINTS = 300
"""Of one line: more cannot be told apart at the picture's width, and the page stays small."""
_SIZE = (5.2, 2.5)
_NAME_AT_MOST = 40
_PANEL_SIZE = (5.2, 1.15)
_PANEL_POINTS = 400
"""Of all lines of a panel together."""
_LINES_AT_MOST = 8
"""More lines than this in a panel are drawn as their lowest, middle and highest."""
_SCALES = {"1": (100.0, "%"), "B/s": (1e-6, "MB/s"), "MiB": (1 / 1024, "GiB")}
"""Units as they are drawn: what a value is multiplied by, and the unit then."""
_HOST_PANELS = {
    "CPU": ("cpu",),
    "Memory": ("memory",),
    "Network, in and out": ("net_rx", "net_tx", "rdma_rx", "rdma_tx"),
    "Power": ("power",),
}
_DEVICE_PANELS = {
    name.capitalize().replace("_used", ""): (name,) for name in ("temperature", "power", "memory_used", "utilization")
}
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


def hosts(monitored: Mapping[str, Samples]) -> str | None:
    """What the hosts did, a line a host: small pictures above one axis of time."""
    start = _start(monitored)
    panels = []
    for name, quantities in _HOST_PANELS.items():
        found = {
            host: _sum([samples.host[one] for one in quantities if one in samples.host])
            for host, samples in monitored.items()
        }
        panels.append(
            _panel(name, {_short(host): series for host, series in found.items() if series is not None}, start)
        )
    return draw_panels("Hosts", panels)


def devices(monitored: Mapping[str, Samples]) -> str | None:
    """What the devices did, a line a device."""
    start = _start(monitored)
    many = len(monitored) > 1
    panels = []
    for name, (quantity_name,) in _DEVICE_PANELS.items():
        found = {
            f"{_short(host)} device {index}" if many else f"device {index}": series[quantity_name]
            for host, samples in monitored.items()
            for index, series in sorted(samples.devices.items())
            if quantity_name in series
        }
        panels.append(_panel(name, found, start))
    return draw_panels("Devices", panels)


def _start(monitored: Mapping[str, Samples]) -> float:
    """The first sample of all."""
    series = [one for samples in monitored.values() for one in samples.host.values()]
    series += [one for samples in monitored.values() for device in samples.devices.values() for one in device.values()]
    return min((one.times[0] for one in series), default=0.0)


def _short(folder: str) -> str:
    return folder.rpartition("_noderank")[0] or folder


def _sum(series: Sequence[Series]) -> Series | None:
    """Quantities of the same samples put together."""
    if not series:
        return None
    first = series[0]
    same = [one for one in series if len(one.times) == len(first.times)]
    return Series(
        first.name, first.unit, first.times, [sum(values) for values in zip(*(one.values for one in same), strict=True)]
    )


@dataclass(frozen=True)
class Panel:
    """A small picture among several."""

    name: str
    lines: tuple[Line, ...]


def _panel(name: str, found: Mapping[str, Series], start: float) -> Panel:
    unit = next((series.unit for series in found.values()), "")
    factor, shown = _SCALES.get(unit, (1.0, unit))
    lines = list(found.items()) if len(found) <= _LINES_AT_MOST else list(_envelope(list(found.values())).items())
    points = max(20, _PANEL_POINTS // max(1, len(lines)))
    drawn = [
        Line(key, tuple(when - start for when, _ in means), tuple(value * factor for _, value in means))
        for key, series in lines
        if (means := _means(series, points))
    ]
    return Panel(f"{name} ({shown})", tuple(drawn))


def _means(series: Series, points: int) -> list[tuple[float, float]]:
    """The series in at most so many steps of the same length, each the mean of its samples."""
    start, whole = series.times[0], series.times[-1] - series.times[0]
    groups: dict[int, list[tuple[float, float]]] = {}
    for when, value in zip(series.times, series.values, strict=True):
        place = min(points - 1, int((when - start) / whole * points)) if whole > 0 else 0
        groups.setdefault(place, []).append((when, value))
    return [(fmean(when for when, _ in group), fmean(value for _, value in group)) for group in groups.values()]


def _envelope(series: Sequence[Series]) -> dict[str, Series]:
    """The lowest, middle and highest of many at each of their times."""
    start, end = min(one.times[0] for one in series), max(one.times[-1] for one in series)
    step = (end - start) / _PANEL_POINTS or 1.0
    groups: dict[int, dict[int, list[float]]] = {}
    for number, one in enumerate(series):
        for when, value in zip(one.times, one.values, strict=True):
            groups.setdefault(int((when - start) / step), {}).setdefault(number, []).append(value)
    times = [start + (place + 0.5) * step for place in sorted(groups)]
    values = [sorted(map(fmean, groups[place].values())) for place in sorted(groups)]
    unit, name = series[0].unit, series[0].name
    return {
        f"lowest of {len(series)}": Series(name, unit, times, [each[0] for each in values]),
        "middle": Series(name, unit, times, [median(each) for each in values]),
        "highest": Series(name, unit, times, [each[-1] for each in values]),
    }


def draw_panels(title: str, panels: Sequence[Panel]) -> str | None:
    """Panels above one another with the time in common; None where there is nothing to draw."""
    panels = [panel for panel in panels if any(line.drawable() for line in panel.lines)]
    if not panels:
        return None
    with _drawing((_PANEL_SIZE[0], _PANEL_SIZE[1] * len(panels) + 0.6)) as figure:
        all_axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
        for axes, panel in zip(all_axes, panels, strict=True):
            _plot(axes, panel.lines, ())
            axes.set_ylim(bottom=0.0)
            axes.set_title(_plain(panel.name), fontsize=8, loc="left", pad=2)
        all_axes[-1].set_xlabel("seconds")
        _legend(figure, max(all_axes, key=lambda axes: len(axes.lines)), max(len(panel.lines) for panel in panels))
        return _inline(_saved(figure), title)


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
    with _drawing(_SIZE) as figure:
        axes = figure.add_subplot()
        _plot(axes, lines, levels)
        if floor is not None:
            axes.set_ylim(bottom=floor)
        axes.set_xlabel(_plain(x_name))
        axes.set_ylabel(_plain(y_name))
        _legend(figure, axes, len(lines) + len(levels))
        return _inline(_saved(figure), title)


def load() -> None:
    """Begin to import what draws: that takes longer than to draw, and who waits for hosts has the time."""
    threading.Thread(target=_load, name="load matplotlib", daemon=True).start()


def _load() -> None:
    import matplotlib.backends.backend_svg
    import matplotlib.figure  # noqa: F401


@contextmanager
def _drawing(size: tuple[float, float]) -> Iterator[Any]:
    """A figure, and the surroundings in which it always looks the same."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_RC), warnings.catch_warnings():
        # The page's font has the glyphs that the one used for measuring lacks.
        warnings.filterwarnings("ignore", r"Glyph .* missing from font", UserWarning)
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        yield figure


def _saved(figure: Any) -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return stream.getvalue()


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
