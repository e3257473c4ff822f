"""The overview of all cases in one table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from pytest_flagperf.report.page import machine
from pytest_flagperf.report.page.html import anchor, css_class, state
from pytest_flagperf.report.terminal.table import NOTHING, converged, metric
from pytest_flagperf.results.comparing.baselines import is_comparison
from pytest_flagperf.results.figures.kinds import EFFICIENCY, FIGURES, SPEEDUP
from pytest_flagperf.results.figures.statistics import Summary, finite, summarize
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.measured.limits import StepWork, work_of
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.verdicts.case_result import STATES, CaseResult, CaseSummary


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
    facts: Mapping[str, str]
    is_training: bool
    main: Summary
    """The p_core of the finished rounds, or the first figure of a measurement."""
    values: tuple[float, ...]
    """The same of each finished round."""
    earlier: tuple[tuple[str, float], ...]
    """The names of comparable earlier runs and their medians, the oldest first."""
    speedup: float | None
    energy_per_sample: float | None
    """The median energy of all devices per sample, in J."""
    work: StepWork | None
    """What a step does, to compare it with the limits of the machine."""

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


def row_of(case: CaseResult, summary: CaseSummary, earlier: Sequence[tuple[str, float]] = ()) -> Row:
    first = case.outcomes[0]
    values = finite(outcome.value(first.main) for outcome in case.outcomes if outcome.ok)
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
        facts=machine.facts(first),
        is_training=first.is_training,
        main=summarize(values),
        values=tuple(values),
        earlier=tuple(earlier),
        speedup=case.speedup,
        energy_per_sample=case.median("device_energy_per_sample"),
        work=work_of(case.outcomes),
    )


def _state(summary: CaseSummary) -> str:
    """Return the cell with the state and, below, the marks and the vendor code."""
    notes = [*summary.marks, *([f"with {summary.vendor_code}"] if summary.vendor_code else [])]
    code = "".join(f'<span class="spread">{escape(note)}</span>' for note in notes)
    return f'<td data-value="{escape(summary.state)}">{state(summary.state)}{code}</td>'


def _meets_baseline(case: CaseResult) -> bool | None:
    comparisons = [verdict for verdict in case.all_verdicts if is_comparison(verdict)]
    return all(verdict.ok for verdict in comparisons) if comparisons else None


def _group(outcome: Outcome) -> str:
    """Return the properties that cases must share to be compared with each other."""
    precision, data = outcome.environment.get("precision"), "synthetic data" if outcome.synthetic else ""
    scale = f"{outcome.scale} scale" if outcome.scale else ""
    return ", ".join(filter(None, (f"{outcome.model} {outcome.framework}", scale, precision, data)))


# -- all cases in one table ----------------------------------------------------------------------------------


_EMPTY = '<td class="number"></td>'


def _number(text: str, value: float | None, below: str = "") -> str:
    if value is None or not math.isfinite(value):
        return _EMPTY
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
    first = case.outcomes[0]
    unit = f'<span class="spread">throughputs in {escape(first.rate_unit)}</span>' if first.is_training else ""
    return f'<td class="name" data-value="{escape(case.case)}">{name}{unit}</td>'


def _rounds(case: CaseResult) -> str:
    """Return the cell with the finished rounds and, below, how many of them are valid."""
    finished = [outcome for outcome in case.outcomes if outcome.ok]
    invalid = sum(bool(outcome.validity_warnings) for outcome in finished)
    below = f"{invalid} invalid" if invalid else "valid" if finished else ""
    return f'<td class="number">{len(finished)}/{len(case.outcomes)}<span class="spread">{below}</span></td>'


def _converged(case: CaseResult) -> str:
    text = converged(case)
    return _EMPTY if text == NOTHING else f'<td class="number">{text}</td>'


def _metric(case: CaseResult) -> str:
    first = case.outcomes[0]
    value = case.quality if first.is_training else case.median(first.main)
    return _number(metric(case.outcomes, named=False), value, first.target.name)


def _speedup(case: CaseResult) -> str:
    cards = case.outcomes[0].cards
    value = case.speedup
    efficiency = "" if value is None else f"{quantity(value / cards, 'share')} of {cards}x"
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
    """Return the table of the cases, without columns that are empty for all of them."""
    if not rows:
        return ""
    every = ["state", *(name for name, _ in COLUMNS)]
    shown = [place for place in range(len(every)) if any(row.cells[place] != _EMPTY for row in rows)]
    names = [every[place] for place in shown]
    head = "".join(
        f"<th data-sort{' class=number' if place > 1 else ''}><button>{escape(name)}</button></th>"
        for place, name in enumerate(names)
    )
    lines = "".join(
        f'<tr data-state="{css_class(row.summary.state)}" '
        f'data-about="{escape(f"{row.case} {row.vendor} {row.summary.state}")}">'
        f"{''.join(row.cells[place] for place in shown)}</tr>"
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
        f'<div class="wide" tabindex="0"><table id="flagperf-cases"><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
        f"{_legend(names)}"
    )


def _legend(names: Sequence[str]) -> str:
    """Return the meaning of each of these columns that is not clear by its name."""
    meanings = {
        "rounds": "finished of all rounds; a round is invalid if a condition distorted it, such as throttled clocks",
        "metric (target)": "the quality of a training with its target, or the first figure of a measurement",
        "converged": "rounds that reached the target, of those that were meant to",
        **{name: FIGURES[name].meaning for name in ("p_whole", "p_train", "p_core")},
        "MFU": FIGURES["mfu"].meaning,
        "speed-up": f"{SPEEDUP}; below it the efficiency: {EFFICIENCY}",
        "e2e": FIGURES["e2e_time"].meaning,
        "±": "the coefficient of variation over the rounds: the standard deviation as a share of the mean",
    }
    terms = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in meanings.items() if name in (*names, "±")
    )
    return f'<p class="soft">Medians over the finished rounds.</p><dl class="legend">{terms}</dl>'
