"""The overview of all cases: a table, throughput over cards, and the same model on different hardware."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from pytest_flagperf.report.page import charts
from pytest_flagperf.report.page.charts import Bar
from pytest_flagperf.report.page.html import anchor, css_class, figures, folded, state
from pytest_flagperf.report.terminal.summary import STATES, CaseSummary
from pytest_flagperf.report.terminal.table import converged, metric
from pytest_flagperf.results.comparing.baselines import is_comparison
from pytest_flagperf.results.comparing.statistics import summarize
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.store import CaseResult
from pytest_flagperf.results.units import count, quantity


@dataclass(frozen=True)
class Row:
    """The data of a case for the overview, without its outcomes."""

    summary: CaseSummary
    meets_baseline: bool | None
    """Whether the case is as good as its accepted baseline; None without a baseline."""
    group: str
    vendor: str
    hardware: str
    device: str
    shape: tuple[int, int]
    rounds: int
    unit: str
    cells: tuple[str, ...]
    p_core: float | None

    @property
    def case(self) -> str:
        return self.summary.case

    @property
    def cards(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def order(self) -> tuple[object, ...]:
        """The sort key: 2 cards before 16."""
        return self.group, self.machine, self.cards, self.shape, self.rounds, self.case

    @property
    def machine(self) -> str:
        return f"{self.vendor} {self.hardware}"


def row_of(case: CaseResult, summary: CaseSummary) -> Row:
    first = case.outcomes[0]
    return Row(
        summary=summary,
        meets_baseline=_meets_baseline(case),
        group=_group(first),
        vendor=first.vendor,
        hardware=first.hardware,
        device=first.environment.get("device", ""),
        shape=(first.nnodes, first.nproc),
        rounds=len(case.outcomes),
        unit=first.rate_unit,
        cells=(_state(summary), *(cell(case) for _, cell in COLUMNS)),
        p_core=case.median("p_core"),
    )


def _state(summary: CaseSummary) -> str:
    """Return the cell with the state and, below, the vendor code."""
    code = f'<span class="spread">with {escape(summary.vendor_code)}</span>' if summary.vendor_code else ""
    return f'<td data-value="{escape(summary.state)}">{state(summary.state)}{code}</td>'


def _meets_baseline(case: CaseResult) -> bool | None:
    comparisons = [verdict for verdicts in case.verdicts.values() for verdict in verdicts if is_comparison(verdict)]
    return all(verdict.ok for verdict in comparisons) if comparisons else None


def _group(outcome: Outcome) -> str:
    """Return the properties that cases must share to be compared with each other."""
    precision, data = outcome.environment.get("precision"), "synthetic data" if outcome.synthetic else ""
    scale = f"{outcome.scale} scale" if outcome.scale else ""
    return ", ".join(filter(None, (f"{outcome.model} {outcome.framework}", scale, precision, data)))


# -- all cases in one table ----------------------------------------------------------------------------------


def _number(text: str, value: float | None, below: str = "") -> str:
    if value is None or not math.isfinite(value):
        return '<td class="number"></td>'
    spread = f'<span class="spread">{escape(below)}</span>' if below else ""
    return f'<td class="number" data-value="{value:.6g}">{escape(text)}{spread}</td>'


def _median(name: str) -> Callable[[CaseResult], str]:
    """Return a function for a cell with the median of the finished rounds, and how much they vary."""

    def cell(case: CaseResult) -> str:
        metrics = [metric for outcome in case.outcomes if outcome.ok and (metric := outcome.metric(name)) is not None]
        summary = summarize(metric.value for metric in metrics)
        unit = next((metric.unit for metric in metrics), "")
        variation = "" if summary.variation is None else f"± {quantity(summary.variation, 'share')}"
        text = "" if summary.median is None else quantity(summary.median, unit)
        # The cell of the case has the unit of all throughputs.
        return _number(text.removesuffix(f" {case.outcomes[0].rate_unit}"), summary.median, variation)

    return cell


def _case(case: CaseResult) -> str:
    name = f'<a href="#{anchor(case.case)}">{escape(case.case)}</a>'
    unit = f'<span class="spread">throughputs in {escape(case.outcomes[0].rate_unit)}</span>'
    return f'<td class="name" data-value="{escape(case.case)}">{name}{unit}</td>'


def _rounds(case: CaseResult) -> str:
    finished = sum(outcome.ok for outcome in case.outcomes)
    return f'<td class="number">{finished}/{len(case.outcomes)}</td>'


def _converged(case: CaseResult) -> str:
    return f'<td class="number">{converged(case)}</td>'


def _metric(case: CaseResult) -> str:
    return _number(metric(case.outcomes, named=False), case.quality, case.outcomes[0].target.name)


def _speedup(case: CaseResult) -> str:
    cards = case.outcomes[0].cards
    value = case.speedup
    efficiency = "" if value is None else f"{quantity(value / cards, 'share')} of {cards}"
    return _number(case.speedup_text, value, efficiency)


COLUMNS: tuple[tuple[str, Callable[[CaseResult], str]], ...] = (
    ("case", _case),
    ("rounds", _rounds),
    ("converged", _converged),
    ("metric (target)", _metric),
    ("p_whole", _median("p_whole")),
    ("p_train", _median("p_train")),
    ("p_core", _median("p_core")),
    ("MFU", _median("mfu")),
    ("speed-up", _speedup),
    ("e2e", _median("e2e_time")),
)


def overview(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    names = ["state", *(name for name, _ in COLUMNS)]
    head = "".join(
        f"<th data-sort{' class=number' if place > 1 else ''}><button>{escape(name)}</button></th>"
        for place, name in enumerate(names)
    )
    lines = "".join(
        f'<tr data-state="{css_class(row.summary.state)}" '
        f'data-about="{escape(f"{row.case} {row.vendor} {row.summary.state}")}">'
        f"{''.join(row.cells)}</tr>"
        for row in rows
    )
    few = "" if len(rows) > 4 else " hidden"
    states = [name for name in STATES if any(row.summary.state == name for row in rows)]
    buttons = "".join(f'<button data-state="{css_class(name)}" aria-pressed="false">{name}</button>' for name in states)
    return (
        '<h2 id="overview">Overview</h2>'
        f'<div class="filter-cases"{few}>'
        '<input type="search" placeholder="filter by words of the case" aria-label="filter cases">'
        f'<button data-state="" aria-pressed="true">all</button>{buttons}</div>'
        f'<div class="wide"><table id="flagperf-cases"><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
        '<p class="soft"><small>Medians over the finished rounds; ± is the coefficient of variation. '
        "Throughputs are the sum over all cards.</small></p>"
    )


# -- several shapes and machines ------------------------------------------------------------------------------


def scaling(rows: Sequence[Row]) -> str:
    """Return a chart and a table for each model that was measured with several numbers of cards."""
    groups = _groups(rows, lambda row: row.group)
    drawn = charts.html(_scaling_chart(f"{name}: p_core", group) for name, group in groups)
    tables = "".join(_efficiencies(f"{name}: p_core [{group[0].unit}] (efficiency)", group) for name, group in groups)
    return f'<h2 id="scaling">Scaling</h2>{drawn}{folded("As a table", tables)}' if drawn else ""


def _efficiencies(title: str, rows: Sequence[Row]) -> str:
    """Return a table with the throughput and efficiency of each number of cards."""
    cards = sorted({row.cards for row in rows})
    table = []
    for machine, by_cards in _by_cards(rows):
        if len(by_cards) > 1:
            least = min(by_cards)
            cells = [
                f"{quantity(value)} ({quantity(value * least / by_cards[least] / number, 'share')})"
                if (value := by_cards.get(number)) is not None
                else ""
                for number in cards
            ]
            table.append((machine, *cells))
    if not table:
        return ""
    return f"<h3>{escape(title)}</h3>{figures(('', *(count(number, 'card') for number in cards)), table)}"


def _scaling_chart(title: str, rows: Sequence[Row]) -> charts.Chart | None:
    points = {machine: list(by_cards.items()) for machine, by_cards in _by_cards(rows) if len(by_cards) > 1}
    return charts.scaling(title, rows[0].unit, points)


def _by_cards(rows: Sequence[Row]) -> Iterator[tuple[str, dict[int, float]]]:
    """Yield p_core by cards for each machine; the case with the fewest hosts, then the most rounds, counts."""
    preferred_last = sorted(rows, key=lambda row: (-row.shape[0], row.rounds))
    for machine in dict.fromkeys(row.machine for row in rows):
        yield machine, {row.cards: row.p_core or math.nan for row in preferred_last if row.machine == machine}


def machines(rows: Sequence[Row]) -> str:
    """Return bars for the same model, scale, precision and shape on different hardware, the fastest first."""
    parts = []
    for title, group in _groups(rows, lambda row: f"{row.group}, {row.shape[0]}x{row.shape[1]}"):
        if len({row.machine for row in group}) > 1:
            fastest_first = sorted(group, key=lambda row: -(row.p_core or 0))
            bars = [_bar(row) for row in fastest_first]
            parts.append(f"<div><h3>{escape(title)}</h3>{charts.bars(bars)}</div>")
    if not parts:
        return ""
    return f'<h2 id="machines">Hardware comparison: p_core</h2><div class="charts">{"".join(parts)}</div>'


def _bar(row: Row) -> Bar:
    return Bar(row.machine, row.p_core or math.nan, quantity(row.p_core, row.unit), f"#{anchor(row.case)}")


def _groups(rows: Iterable[Row], key: Callable[[Row], str]) -> Iterable[tuple[str, list[Row]]]:
    """Group the cases that have a throughput."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.p_core is not None and math.isfinite(row.p_core):
            groups.setdefault(key(row), []).append(row)
    return groups.items()
