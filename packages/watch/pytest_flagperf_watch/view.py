"""One picture of a run for a terminal: its running rounds with curves, hosts and devices, its cases, and its notes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from flagperf_driver.node.logs.ranklog import Curve
from pytest_flagperf.results.figures.units import count, plain, quantity

from .curves import plot, sparkline
from .follow import DIED, ENDED, FollowedRun, Status
from .state import (
    EXPECTED,
    FAILED,
    PASSED,
    RUNNING,
    UNFINISHED,
    WAITING,
    CaseState,
    HostState,
    LiveRound,
    ProcessState,
)

_STYLES = {
    FAILED: "bold red",
    RUNNING: "cyan",
    EXPECTED: "yellow",
    PASSED: "green",
    UNFINISHED: "yellow",
    WAITING: "dim",
}
_ORDER = (RUNNING, FAILED, UNFINISHED, EXPECTED, PASSED, WAITING)
_WIDE, _MEDIUM = 100, 64
_PLOT_ROWS, _PLOT_WIDTH = 4, 26
THROUGHPUT, POWER = "throughput", "power"
_BETWEEN = "   "
_MOST_NOTES = 5
_MOST_HOSTS = 4
_SILENT_RANK_S = 5.0


@dataclass(frozen=True)
class Frame:
    """The picture of a run at one moment; it fits the console's width and height."""

    run: FollowedRun
    footer: str = ""
    is_whole: bool = False
    """Whether to show everything, even if it is higher than the terminal."""
    now: float | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = 10_000 if self.is_whole or options.height is None else options.height
        width, ascii_only = options.max_width, not str(console.encoding).lower().startswith("utf")
        now = time.time() if self.now is None else self.now
        top: list[RenderableType] = [*_header(self.run, now)]
        bottom = [_cut(f"note: {text}", "yellow") for text in self.run.notes()]
        bottom += _notes(self.run, width)
        if self.footer:
            bottom.append(_cut(self.footer, "dim"))
        left = height - len(top) - len(bottom)
        cases = _Cases(list(self.run.state.cases.values()), width)
        middle = _rounds(self.run, width, left - min(cases.height, 8), ascii_only, now)
        left -= sum(lines for lines, _ in middle)
        picture = Group(*top, *(block for _, block in middle), *cases.shown(max(left, 3)), *bottom)
        for line in console.render_lines(picture, options.update(height=None), pad=False)[:height]:
            for text, style, control in line:
                yield Segment(text.replace("…", ".") if ascii_only else text, style, control)
            yield Segment.line()


def _header(run: FollowedRun, now: float) -> Iterator[Text]:
    status, state = run.status(), run.state
    main = state.main
    line = Text(run.path.name, style="bold", no_wrap=True, overflow="ellipsis")
    if main is not None:
        until = main.last if status.is_over else now
        line.append(f"  {quantity(max(0.0, round(until - main.began)), 's')}", style="none")
    line.append(f"  {status.text}", style=_style_of(status))
    yield line
    counts = [(name, state.count(name)) for name in (RUNNING, PASSED, FAILED, UNFINISHED, EXPECTED, WAITING)]
    summary = Text(f"{count(len(state.cases), 'case')}: " if state.cases else "no cases yet", no_wrap=True)
    for number, (name, cases) in enumerate((name, cases) for name, cases in counts if cases):
        summary.append(", " if number else "").append(f"{cases} {name}", style=_STYLES[name])
    yield summary
    yield Text("")


def _style_of(status: Status) -> str:
    return "bold red" if status.word == DIED else "none" if status.word == ENDED else "dim"


# -- rounds ------------------------------------------------------------------------------------------------------


def _rounds(
    run: FollowedRun, width: int, height: int, ascii_only: bool, now: float
) -> list[tuple[int, RenderableType]]:
    """Return blocks of lines, one for each process that does something; the fewer lines, the more processes."""
    dead = {process.name for process in run.dead_workers()} | (
        {process.name for process in run.state.processes.values()} if run.status().word == DIED else set()
    )
    busy = [process for process in run.state.processes.values() if process.round is not None or process.phase]
    busy = [process for process in busy if not process.has_ended]
    each = height // len(busy) if busy else 0
    return [_block(process, width, each, ascii_only, process.last if process.name in dead else now) for process in busy]


def _block(process: ProcessState, width: int, height: int, ascii_only: bool, now: float) -> tuple[int, RenderableType]:
    lines: list[RenderableType] = [_title(process, now)]
    here = process.round
    if here is not None and here.figures.step:
        hosts = _hosts(here, width - 2)
        curves = [curve for curve in _curves(here) if curve[1].seen]
        side_by_side = curves[: max(1, width // _PLOT_WIDTH)]
        rows = _PLOT_ROWS + 1
        if width >= _MEDIUM and height >= 1 + rows + sum(map(len, hosts[:_MOST_HOSTS])) + 1:
            lines.append(_plots(side_by_side, width, ascii_only))
            used = 1 + rows
        else:
            lines += [_line_of_curve(*curve, width, ascii_only) for curve in curves[: max(0, height - 3)]]
            used = len(lines)
        shown = hosts[: max(1, min(_MOST_HOSTS, (height - used - 1) // len(hosts[0])))] if hosts else []
        lines += [_cut(f"  {text}", "none") for texts in shown for text in texts]
        if len(hosts) > len(shown):
            lines.append(_cut(f"  and {count(len(hosts) - len(shown), 'more host')}", "dim"))
        used += sum(map(len, shown)) + (len(hosts) > len(shown))
    else:
        used = 1
    if height > used:
        lines.append(Text(""))
        used += 1
    return used, Group(*lines)


def _title(process: ProcessState, now: float) -> Text:
    here = process.round
    name = here.name if here is not None else "run"
    line = Text(name, style="bold cyan", no_wrap=True, overflow="ellipsis")
    if here is not None:
        line.append(f"  {quantity(max(0.0, round(now - here.began)), 's')}", style="none")
    if process.phase:
        since = max(0.0, round(now - process.phase_since))
        text = process.phase.removeprefix(f"{here.figures.case} ") if here is not None else process.phase
        line.append(f"  {text}  ({quantity(since, 's')})", style="yellow")
    elif here is not None:
        line.append(f"  {_figures(here)}", style="none")
    return line


def _figures(here: LiveRound) -> str:
    figures = here.figures
    if not figures.step:
        return figures.phase
    texts = ["" if figures.phase == "training" else figures.phase, f"step {figures.step:,}"]
    if figures.time_left_s is not None:
        texts.append(f"estimated {quantity(figures.time_left_s, 's')} left")
    return "  ".join(filter(None, texts))


def _curves(here: LiveRound) -> Iterator[tuple[str, Curve[float], str]]:
    """Yield the name, the curve and the latest value of each quantity."""
    figures = here.figures
    if figures.loss is not None:
        yield "loss", here.loss, plain(figures.loss, 3)
    if figures.throughput is not None:
        yield THROUGHPUT, here.throughput, quantity(figures.throughput, f"{figures.sample_unit}/s", 3)
    if figures.metric is not None:
        target = "" if figures.target is None else f" of {plain(figures.target, 3)}"
        yield figures.metric_name or "metric", here.metric, f"{plain(figures.metric, 3)}{target}"
    if here.power.seen:
        yield POWER, here.power, quantity(here.power.points()[-1], "W", 3)


def _plots(curves: Sequence[tuple[str, Curve[float], str]], width: int, ascii_only: bool) -> Table:
    """Return the curves beside each other, each under its name and its value."""
    table = Table.grid(padding=(0, len(_BETWEEN)))
    columns = max(12, (width - 2) // max(1, len(curves)) - len(_BETWEEN))
    for _ in curves:
        table.add_column(width=columns, no_wrap=True, overflow="crop")
    titles = [(Text("  " if name == THROUGHPUT else f"  {name} "), value) for name, _, value in curves]
    table.add_row(*(title.append(value, style="bold") for title, value in titles))
    pictures = [plot(curve.points(), columns - 2, _PLOT_ROWS, plain=ascii_only) for _, curve, _ in curves]
    for number in range(_PLOT_ROWS):
        table.add_row(*(Text("  " + picture[number], style="cyan") for picture in pictures))
    return table


def _line_of_curve(name: str, curve: Curve[float], value: str, width: int, ascii_only: bool) -> Text:
    columns = max(8, min(60, width - 40))
    line = Text(f"  {name[:12]:12}", no_wrap=True, overflow="crop")
    line.append(f"{sparkline(curve.points(), columns, plain=ascii_only):{columns}}", style="cyan")
    return line.append(f" {value}", style="bold")


# -- hosts ---------------------------------------------------------------------------------------------------------


def _hosts(here: LiveRound, width: int) -> list[list[str]]:
    """Return one or two lines for each host: its ranks, its load and its devices."""
    most = max((rank.step for host in here.hosts.values() for rank in host.ranks.values()), default=0)
    parts = [
        (f"{name}  {_ranks(host, most)}{_load(host)}", _devices(host)) for name, host in sorted(here.hosts.items())
    ]
    if all(len(ranks) + len(devices) + 2 <= width for ranks, devices in parts):
        return [["  ".join(filter(None, texts))] for texts in parts]
    return [[ranks, *([f"  {devices}"] if devices else [])] for ranks, devices in parts]


def _ranks(host: HostState, most: int) -> str:
    if not host.ranks:
        return "no ranks yet"
    numbers = sorted(host.ranks)
    steps = sorted({rank.step for rank in host.ranks.values()})
    phases = sorted({rank.phase for rank in host.ranks.values()})
    names = f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {numbers[0]}-{numbers[-1]}"
    text = f"{names} {'/'.join(phases)} step {steps[0]:,}" + (f"-{steps[-1]:,}" if len(steps) > 1 else "")
    if steps[-1] < most:
        text += f" ({most - steps[-1]:,} behind)"
    silent = {number: rank.idle_s for number, rank in host.ranks.items() if rank.idle_s >= _SILENT_RANK_S}
    for number, idle_s in sorted(silent.items(), key=lambda item: -item[1])[:2]:
        text += f", rank {number} silent for {quantity(idle_s, 's', 3)}"
    for number, ratio in sorted(host.slow.items(), key=lambda item: -item[1])[:2]:
        text += f", rank {number} slow {quantity(ratio, 'x')}"
    return text


def _devices(host: HostState) -> str:
    devices = list(host.devices.values())
    if not devices:
        return ""
    texts = []
    for name, unit in (("power", "W"), ("temperature", "C"), ("utilization", "%")):
        values = [device[name] for device in devices if name in device]
        if values:
            texts.append(_spread(values, unit))
    used = [device["memory_used"] for device in devices if "memory_used" in device]
    total = [device["memory_total"] for device in devices if "memory_total" in device]
    if used and total:
        texts.append(f"memory {quantity(max(used) * 2**20, 'bytes', 3)} of {quantity(max(total) * 2**20, 'bytes', 3)}")
    return f"{count(len(devices), 'device')}: {', '.join(texts)}" if texts else ""


def _spread(values: Sequence[float], unit: str) -> str:
    low, high = plain(min(values), 3), plain(max(values), 3)
    return f"{low} {unit}" if low == high else f"{low}-{high} {unit}"


def _load(host: HostState) -> str:
    kinds = (("cpu", "CPU"), ("memory", "RAM"))
    texts = [f"{label} {quantity(host.load[name], 'share')}" for name, label in kinds if name in host.load]
    return "  " + ", ".join(texts) if texts else ""


# -- cases and notes -----------------------------------------------------------------------------------------------


class _Cases:
    """The table of the cases, the running and the failed ones first; cases without room are counted."""

    def __init__(self, cases: list[CaseState], width: int) -> None:
        self._cases = sorted(cases, key=lambda case: _ORDER.index(case.state))
        self._width = width

    @property
    def height(self) -> int:
        return len(self._cases) + 1 if self._cases else 0

    def shown(self, height: int) -> Iterator[RenderableType]:
        if not self._cases:
            return
        shown = self._cases if self.height <= height else self._cases[: max(1, height - 2)]
        table = Table.grid(padding=(0, 2, 0, 0))
        heads = ["case", "state", "rounds", *(("metric", "throughput") if self._width >= _WIDE else ())]
        for number, _ in enumerate(heads):
            table.add_column(no_wrap=True, overflow="ellipsis", justify="right" if number > 1 else "left")
        table.add_row(*(Text(head, style="dim") for head in heads))
        for case in shown:
            cells = [Text(case.case), Text(case.state, style=_STYLES[case.state]), Text(f"{case.done}/{case.rounds}")]
            table.add_row(*cells, *(map(Text, _last(case)) if self._width >= _WIDE else ()))
        yield table
        rest = self._cases[len(shown) :]
        if rest:
            counts = [f"{number} {name}" for name in _ORDER if (number := sum(each.state == name for each in rest))]
            yield _cut(f"and {count(len(rest), 'more case')}: {', '.join(counts)}", "dim")


def _last(case: CaseState) -> tuple[str, str]:
    figures = case.running.figures if case.running is not None else case.last
    if figures is None or not figures.step:
        return "", ""
    target = "" if figures.target is None else f" of {plain(figures.target, 3)}"
    metric = "" if figures.metric is None else f"{figures.metric_name} {plain(figures.metric, 3)}{target}"
    rate = "" if figures.throughput is None else quantity(figures.throughput, f"{figures.sample_unit}/s", 3)
    return metric, rate


def _notes(run: FollowedRun, width: int) -> list[Text]:
    last = list(run.state.notes)[-_MOST_NOTES:]
    lines = [Text("")] if last else []
    for when, text in last:
        clock = time.strftime("%H:%M:%S", time.localtime(when))
        lines += map(Text, wrap(f"{clock}  {text}", width, subsequent_indent=" " * 10, max_lines=3, placeholder="…"))
    return lines


def _cut(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
