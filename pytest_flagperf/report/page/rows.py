"""All cases beside each other: one table, throughput over cards, the same model on different hardware."""

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
    """What is kept of a case when its outcomes are gone."""

    summary: CaseSummary
    held: bool | None
    """Whether the case is as good as its accepted baseline; None without a baseline."""
    about: str
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
        """As people count: 2 cards before 16."""
        return self.about, self.machine, self.cards, self.shape, self.rounds, self.case

    @property
    def machine(self) -> str:
        return f"{self.vendor} {self.hardware}"


def row_of(case: CaseResult, summary: CaseSummary) -> Row:
    one = case.outcomes[0]
    return Row(
        summary=summary,
        held=_held(case),
        about=_about(one),
        vendor=one.vendor,
        hardware=one.hardware,
        device=one.environment.get("device", ""),
        shape=(one.nnodes, one.nproc),
        rounds=len(case.outcomes),
        unit=one.rate_unit,
        cells=(_state(summary), *(cell(case) for _, cell in COLUMNS)),
        p_core=case.median("p_core"),
    )


def _state(summary: CaseSummary) -> str:
    """The state, and below it the vendor code that it came about with."""
    code = f'<span class="spread">with {escape(summary.vendor_code)}</span>' if summary.vendor_code else ""
    return f'<td data-value="{escape(summary.state)}">{state(summary.state)}{code}</td>'


def _held(case: CaseResult) -> bool | None:
    found = [verdict for verdicts in case.verdicts.values() for verdict in verdicts if is_comparison(verdict)]
    return all(verdict.ok for verdict in found) if found else None


def _about(one: Outcome) -> str:
    """What cases must have in common to stand beside each other."""
    precision, data = one.environment.get("precision"), "synthetic data" if one.synthetic else ""
    scale = f"{one.scale} scale" if one.scale else ""
    return ", ".join(filter(None, (f"{one.model} {one.framework}", scale, precision, data)))


# -- all cases in one table ----------------------------------------------------------------------------------


def _number(said: str, value: float | None, beside: str = "") -> str:
    if value is None or not math.isfinite(value):
        return '<td class="number"></td>'
    spread = f'<span class="spread">{escape(beside)}</span>' if beside else ""
    return f'<td class="number" data-value="{value:.6g}">{escape(said)}{spread}</td>'


def _median(name: str) -> Callable[[CaseResult], str]:
    """The middle of the rounds that ended well, and how much they vary."""

    def cell(case: CaseResult) -> str:
        found = [outcome.metric(name) for outcome in case.outcomes if outcome.ok]
        summary = summarize(metric.value for metric in found if metric is not None)
        unit = next((metric.unit for metric in found if metric is not None), "")
        beside = "" if summary.variation is None else f"± {quantity(summary.variation, 'share')}"
        said = "" if summary.median is None else quantity(summary.median, unit)
        # A rate's unit is long, and the same in several columns: it stands with the case.
        return _number(said.removesuffix(f" {case.outcomes[0].rate_unit}"), summary.median, beside)

    return cell


def _case(case: CaseResult) -> str:
    name = f'<a href="#{anchor(case.case)}">{escape(case.case)}</a>'
    unit = f'<span class="spread">throughputs in {escape(case.outcomes[0].rate_unit)}</span>'
    return f'<td class="name" data-value="{escape(case.case)}">{name}{unit}</td>'


def _rounds(case: CaseResult) -> str:
    well = sum(outcome.ok for outcome in case.outcomes)
    return f'<td class="number">{well}/{len(case.outcomes)}</td>'


def _converged(case: CaseResult) -> str:
    return f'<td class="number">{converged(case)}</td>'


def _metric(case: CaseResult) -> str:
    return _number(metric(case.outcomes, named=False), case.quality, case.outcomes[0].target.name)


def _speedup(case: CaseResult) -> str:
    cards = case.outcomes[0].cards
    value = case.speedup
    beside = "" if value is None else f"{quantity(value / cards, 'share')} of {cards}"
    return _number(case.speedup_text, value, beside)


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
        '<input type="search" placeholder="filter: words of the case" aria-label="filter cases">'
        f'<button data-state="" aria-pressed="true">all</button>{buttons}</div>'
        f'<div class="wide"><table id="flagperf-cases"><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
        '<p class="soft"><small>Medians over the rounds that ended well; ± is how much rounds vary (coefficient of '
        "variation). Throughputs are of all cards together.</small></p>"
    )


# -- across shapes and machines ------------------------------------------------------------------------------


def scaling(rows: Sequence[Row]) -> str:
    """A chart for each model that was measured on several numbers of cards."""
    groups = _groups(rows, lambda row: row.about)
    made = charts.html(_scaled(f"{about}: p_core", group) for about, group in groups)
    told = "".join(_efficiencies(f"{about}: p_core [{group[0].unit}] (efficiency)", group) for about, group in groups)
    return f'<h2 id="scaling">Scaling</h2>{made}{folded("As a table", told)}' if made else ""


def _efficiencies(title: str, rows: Sequence[Row]) -> str:
    """The same as a table: what each number of cards does, and how much of it is lost on the way."""
    cards = sorted({row.cards for row in rows})
    found = []
    for machine, mine in _by_cards(rows):
        if len(mine) > 1:
            least = min(mine)
            each = [
                f"{quantity(mine[number])} ({quantity(mine[number] * least / mine[least] / number, 'share')})"
                if number in mine
                else ""
                for number in cards
            ]
            found.append((machine, *each))
    if not found:
        return ""
    return f"<h3>{escape(title)}</h3>{figures(('', *(count(number, 'card') for number in cards)), found)}"


def _scaled(title: str, rows: Sequence[Row]) -> charts.Chart | None:
    several = {machine: list(mine.items()) for machine, mine in _by_cards(rows) if len(mine) > 1}
    return charts.scaling(title, rows[0].unit, several)


def _by_cards(rows: Sequence[Row]) -> Iterator[tuple[str, dict[int, float]]]:
    """Of each machine p_core by cards; of several cases that of the fewest hosts, and then of most rounds."""
    best_last = sorted(rows, key=lambda row: (-row.shape[0], row.rounds))
    for machine in dict.fromkeys(row.machine for row in rows):
        yield machine, {row.cards: row.p_core or math.nan for row in best_last if row.machine == machine}


def machines(rows: Sequence[Row]) -> str:
    """The same model, scale, precision and shape on different hardware: bars, the fastest first."""
    parts = []
    for title, group in _groups(rows, lambda row: f"{row.about}, {row.shape[0]}x{row.shape[1]}"):
        if len({row.machine for row in group}) > 1:
            fastest_first = sorted(group, key=lambda row: -(row.p_core or 0))
            bars = [_bar(row) for row in fastest_first]
            parts.append(f"<div><h3>{escape(title)}</h3>{charts.bars(bars)}</div>")
    if not parts:
        return ""
    return f'<h2 id="machines">Hardware beside hardware: p_core</h2><div class="charts">{"".join(parts)}</div>'


def _bar(row: Row) -> Bar:
    return Bar(row.machine, row.p_core or math.nan, quantity(row.p_core, row.unit), f"#{anchor(row.case)}")


def _groups(rows: Iterable[Row], key: Callable[[Row], str]) -> Iterable[tuple[str, list[Row]]]:
    """Of the cases that have a throughput."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.p_core is not None and math.isfinite(row.p_core):
            found.setdefault(key(row), []).append(row)
    return found.items()
