"""The overview: one row for each case, with small curves, its figures, their change, and what limits it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape

from pytest_flagperf.kind import kind_of
from pytest_flagperf.report import charts
from pytest_flagperf.report.case_cell import anchor
from pytest_flagperf.report.sweeps import SweptCase, swept_case
from pytest_flagperf.report.terminal.table import converged, metric
from pytest_flagperf.results.comparing.baselines import is_comparison
from pytest_flagperf.results.comparing.stored_runs import NamedRounds
from pytest_flagperf.results.figures import noise
from pytest_flagperf.results.figures.kinds import EFFICIENCY, FIGURES, SPEEDUP
from pytest_flagperf.results.figures.statistics import Summary, finite, summarize
from pytest_flagperf.results.figures.units import count, quantity, signed
from pytest_flagperf.results.measured.limits import StepLimits, StepWork, work_of
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.measured.profile import NO_LOSS
from pytest_flagperf.results.verdicts.case_result import BAD, STATES, CaseResult, CaseSummary
from pytest_flagperf.stored.plan import MeasuredFigure

from . import machine, trend_html
from .case_table import CaseLine, case_table, cell
from .failures import advice
from .html import Markup, Name, Number, linked, state
from .small_charts import POINTS, small
from .time_parts import of_training
from .trend import Trend, trends_of


@dataclass(frozen=True)
class Row:
    """The data of a case for the overview, without its outcomes."""

    summary: CaseSummary
    meets_baseline: bool | None
    """Whether the case is as good as its accepted baseline; None without a baseline."""
    group: str
    model: str
    vendor: str
    hardware: str
    shape: tuple[int, int]
    rounds: int
    valid: int
    """The number of valid rounds."""
    unit: str
    cells: Mapping[str, str]
    """The cells of the overview by column; only of those that the case fills."""
    facts: Mapping[str, str]
    figure: str
    """The name of the main figure."""
    converged: bool
    """Whether every round was meant to converge and did."""
    measured: tuple[tuple[str, ...], ...]
    """The cells of each figure of a measurement."""
    main: Summary
    """The p_core of the rounds that count, or the first figure of a measurement."""
    values: tuple[float, ...]
    """The same of each of these rounds."""
    speedup: float | None
    energy_per_sample: float | None
    """The median energy of all devices per sample, in J."""
    work: StepWork | None
    """What a step does, to compare it with the limits of the machine."""
    advice: str
    """What to do about the first failure."""
    link: str
    """The address of the case's section."""
    trends: tuple[Trend, ...]
    """The trends of the main figure and of changed points over the comparable runs before this one, and this one."""
    swept: SweptCase | None
    """The case as a variant of a sweep."""

    @property
    def case(self) -> str:
        return self.summary.case

    @property
    def linked(self) -> Markup:
        return linked(self.case, self.link)

    @property
    def cards(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def same_work(self) -> str:
        """The properties that cases on several cards or machines must share to be compared."""
        return f"{self.group}, {self.swept.label}" if self.swept else self.group

    @property
    def order(self) -> tuple[object, ...]:
        """The sort key: failures first, 2 cards before 16."""
        bad = self.summary.state not in BAD
        values = self.swept.order if self.swept else ()
        return bad, self.group, self.machine, self.cards, self.shape, self.rounds, values, self.case

    @property
    def machine(self) -> str:
        return machine.named(self.vendor, self.hardware)


def row_of(
    case: CaseResult, summary: CaseSummary, earlier: Sequence[NamedRounds] = (), run: str = "", page: str = ""
) -> Row:
    """Return the row of a case of a run; ``earlier``: the comparable runs before this one, the oldest first.

    ``page``: the address of the page with the case's section, by default this one.
    """
    link = f"{page}#{anchor(case.case)}"
    first = case.outcomes[0]
    values = finite(outcome.value(first.main) for outcome in case.counted)
    cells = {name: cell(case) for name, (cell, _) in COLUMNS.items()}
    # Below the name are the rounds, unless it is one good round.
    cells["case"] = cell(linked(case.case, link), escape(case.case), ", ".join(_rounds(case)), number=False)
    history = trends_of([*earlier, (run, case.outcomes)])
    cells |= {_STATE: _state(summary), _CHANGE: _change(case, earlier, history)}
    return Row(
        summary=summary,
        meets_baseline=_meets_baseline(case),
        group=_group(first),
        model=first.model,
        vendor=first.vendor,
        hardware=first.hardware,
        shape=(first.nnodes, first.nproc),
        rounds=len(case.outcomes),
        valid=sum(outcome.valid for outcome in case.outcomes),
        unit=first.rate_unit,
        cells={name: cell for name, cell in cells.items() if cell},
        facts=machine.facts(first),
        figure=first.main,
        converged=case.converged == len(case.outcomes),
        measured=tuple(_measured(case, link)),
        main=summarize(values),
        values=tuple(values),
        speedup=None if "speed-up" in summary.not_judged else case.speedup,
        energy_per_sample=case.median("device_energy_per_sample"),
        work=work_of(case.outcomes),
        advice=advice(case),
        link=link,
        trends=tuple(history),
        swept=swept_case(case, summary),
    )


def _meets_baseline(case: CaseResult) -> bool | None:
    comparisons = [verdict for verdict in case.all_verdicts if is_comparison(verdict)]
    return all(verdict.ok for verdict in comparisons) if comparisons else None


def _group(outcome: Outcome) -> str:
    """Return the properties that cases must share to be compared with each other."""
    precision, data = outcome.environment.get("precision"), "synthetic data" if outcome.synthetic else ""
    scale = f"{outcome.scale} scale" if outcome.scale else ""
    return ", ".join(filter(None, (f"{outcome.model} {outcome.framework}", scale, precision, data)))


_MOST_FIGURES, _FIRST_FIGURES = 16, 8
"""A case with more figures has only the first ones in the table of measurements."""


# -- the cells -----------------------------------------------------------------------------------------------


def _state(summary: CaseSummary) -> str:
    """Return the cell with the state and, below, the marks and the vendor code."""
    notes = [*summary.marks, *([f"with {summary.vendor_code}"] if summary.vendor_code else [])]
    code = "".join(f'<span class="spread">{escape(note)}</span>' for note in notes)
    return cell(f"{state(summary.state)}{code}", escape(summary.state), number=False)


def _rounds(case: CaseResult) -> Iterator[str]:
    finished = [outcome for outcome in case.outcomes if outcome.ok]
    invalid = sum(bool(outcome.validity_warnings) for outcome in finished)
    if len(finished) < len(case.outcomes):
        yield f"{len(finished)} of {count(len(case.outcomes), 'round')} finished"
    elif len(finished) > 1:
        yield count(len(finished), "round")
    if invalid:
        yield f"{invalid} invalid"
    if case.converged is not None and case.converged < len(finished):
        yield f"{case.converged} of {case.meant} converged"
    elif converged(case) in ("parity", "not tested"):
        yield converged(case)


def _metric(case: CaseResult) -> str:
    """Return the curve of the metric with its target, else the first curve of its kind."""
    rounds, first = case.outcomes, case.outcomes[0]
    curve = small(charts.metric(rounds, POINTS)) or _curve(rounds, first.figures[:1])
    text = metric(rounds, named=False)
    value = case.median(first.main) if first.figures else case.quality
    name = first.target.name if text else ""
    return cell(_beside(curve, escape(text), name) if curve or text else "", value, number=False)


def _curve(rounds: Sequence[Outcome], figures: Sequence[MeasuredFigure]) -> str:
    """Return the first curve of the kind of rounds, of a measurement that of these figures."""
    rounds = [replace(outcome, figures=tuple(figures)) for outcome in rounds]
    return small(next(filter(None, kind_of(rounds[0]).charts(rounds, POINTS)), None))


def _measured(case: CaseResult, link: str) -> Iterator[tuple[str, ...]]:
    """Yield a line for each figure; of a case with many, the first ones and how many more there are."""
    known = [(figure, value) for figure in case.first.figures if (value := case.median(figure.name)) is not None]
    shown = known if len(known) <= _MOST_FIGURES else known[:_FIRST_FIGURES]
    for figure, value in shown:
        share = quantity(value / figure.peak, "share") if figure.peak else ""
        curve = Markup(_curve(case.outcomes, [figure]))
        yield linked(case.case, link), Name(figure.name), Number(quantity(value, figure.unit)), Number(share), curve
    if len(shown) < len(known):
        yield linked(case.case, link), Name(f"and {len(known) - len(shown)} more"), Number(""), Number(""), Markup("")


def _beside(curve: str, text: str, below: str) -> str:
    """Return a text with a small text below, beside a curve."""
    return f'<span class="curve">{curve}<span>{text}<span class="spread">{escape(below)}</span></span></span>'


def _median(name: str) -> Callable[[CaseResult], str]:
    """Return a function for a cell with the median of the rounds that count, its unit, and how much they vary."""

    def of_case(case: CaseResult) -> str:
        metrics = [metric for outcome in case.counted if (metric := outcome.metric(name)) is not None]
        summary = summarize(metric.value for metric in metrics)
        if summary.median is None or not math.isfinite(summary.median):
            return ""
        unit, rate = metrics[0].unit, case.outcomes[0].rate_unit
        variation = (
            "" if summary.variation is None else f"± {quantity(summary.variation, 'share')}".replace(" ", "\xa0")
        )
        text = quantity(summary.median, unit)
        below = f"{rate} {variation}".strip() if unit == rate and text.endswith(f" {rate}") else variation
        return cell(escape(text.removesuffix(f" {rate}")), summary.median, below)

    return of_case


def _speedup(case: CaseResult) -> str:
    cards = case.outcomes[0].cards
    value = case.speedup
    text, _, noisy = case.speedup_text.partition(" (")
    short = ", short rounds" if case.one_card and case.one_card.many else ""
    efficiency = "" if value is None else f"{quantity(value / cards, 'share')} of {cards}x{short}"
    return cell(escape(text), value, noisy.removesuffix(")") or efficiency)


def _change(case: CaseResult, earlier: Sequence[NamedRounds], history: Sequence[Trend]) -> str:
    """Return the change of the main figure against the accepted baseline, else the run before, with the trend."""
    main = case.outcomes[0].main
    drawn = "".join(small(trend_html.small_chart(one)) for one in history[:1])
    for verdict in case.all_verdicts:
        if is_comparison(verdict) and verdict.name.endswith(f" {main}") and verdict.change is not None:
            word = noise.WORSE if not verdict.ok else "not worse"
            return cell(_beside(drawn, _changed(verdict.change, word), f"{word}, baseline"), verdict.change)
    *runs, values = [
        finite(outcome.value(main) for outcome in rounds if outcome.valid)
        for rounds in (*(rounds for _, rounds in earlier), case.outcomes)
    ]
    if not runs or not values:
        return cell(drawn)
    direction = next((found.direction for outcome in case.outcomes if (found := outcome.metric(main))), None)
    judgement = noise.compare(runs[-1], values, [*runs, values], direction=direction)
    if judgement.change is None:
        return cell(drawn)
    word = judgement.word if judgement.error else "noise unknown"
    return cell(_beside(drawn, _changed(judgement.change, word), f"{word}, {earlier[-1][0]}"), judgement.change)


def _changed(change: float, word: str) -> str:
    kind = {noise.WORSE: " class=bad", noise.BETTER: " class=ok"}.get(word, "")
    return f"<span{kind}>{signed(change)}</span>"


def _limited(case: CaseResult) -> str:
    """Return the largest loss of the profiled steps, else the part of the training that its steps wait longest for."""
    profile = next((outcome.profile for outcome in case.outcomes if outcome.ok and outcome.profile), None)
    if profile is not None and profile.largest_loss:
        return cell(escape(profile.largest_loss), number=False)
    first = next((outcome for outcome in case.outcomes if outcome.ok), case.outcomes[0])
    parts = {**of_training(first), "waiting for a core": first.value("core_wait") or 0.0}
    largest = max(parts, key=lambda name: parts[name])
    share = parts[largest]
    below = f"{quantity(share, 'share')} of the time"
    return cell(largest, share, below, number=False) if share >= NO_LOSS else ""


def of_limits(limits: StepLimits) -> str:
    """Return the cell of a training whose machine was measured: the limit that binds, as a share of its step."""
    share = limits.share(limits.least)
    return cell(limits.binds, share, f"{quantity(share, 'share')} of the step", number=False)


RATES = {"p_whole": "whole training: p_whole", "p_core": "steps alone: p_core"}
_STATE, _CHANGE, LIMITED = "state", "change", "limited by"
COLUMNS: Mapping[str, tuple[Callable[[CaseResult], str], str]] = {
    _STATE: (lambda _: "", ""),
    "case": (lambda _: "", "a round is invalid if a condition distorted it, such as throttled clocks"),
    "metric (target)": (
        _metric, "the quality of a training over its steps, with its target (dashed), or a measurement's first figure",
    ),
    "throughput": (
        lambda case: cell(small(charts.throughput(case.outcomes, POINTS)), number=False),
        "the throughput of all cards over the time of the training, from zero",
    ),
    **{title: (_median(name), FIGURES[name].meaning) for name, title in RATES.items()},
    _CHANGE: (
        lambda _: "",
        "of p_core, or of a measurement's first figure: against the accepted baseline, else against the last valid run "
        "in the same folder with the same config and machine (its code may differ), with the trend over such runs",
    ),
    "MFU": (_median("mfu"), FIGURES["mfu"].meaning),
    "speed-up": (_speedup, f"{SPEEDUP}; below it the efficiency: {EFFICIENCY}"),
    LIMITED: (
        _limited,
        "what binds a step by the measured limits of the machine, else the largest loss of the profiled steps, else "
        "what the steps of the training wait longest for, from 5 % on",
    ),
    "e2e": (_median("e2e_time"), FIGURES["e2e_time"].meaning),
}  # fmt: skip
"""The columns, their cells and meanings; those of the state, the case and the change need more than the case."""
_NOISE = "the coefficient of variation over the rounds: the standard deviation as a share of the mean"


def overview(rows: Sequence[Row], limits: Mapping[str, StepLimits], further: Mapping[str, str] | None = None) -> str:
    """Return the table of the cases, without columns that are empty for all of them; ``further``: more columns."""
    lines = [
        CaseLine(
            row.summary.state,
            f"{row.case} {row.vendor} {row.summary.state}",
            {**row.cells, **({LIMITED: of_limits(limits[row.case])} if row.case in limits else {})},
        )
        for row in rows
    ]
    states = [name for name in STATES if any(row.summary.state == name for row in rows)]
    meanings = {**{name: text for name, (_, text) in COLUMNS.items()}, **(further or {})}
    legend = "Meaning of the columns: medians over the valid rounds, or over all that finished if none is valid"
    return case_table(lines, meanings, states, legend, {"±": _NOISE})
