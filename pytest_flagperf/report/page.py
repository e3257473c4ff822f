"""The page of a run, made from its directory alone: what came out, every case in one table, and a section a case.

``body`` is the part that pytest-html's report is extended by; ``alone`` makes a page of it that stands by itself.
Cases are read one after the other, and of long logs and series only parts: the memory does not grow with either.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

from pytest_flagperf.report import charts
from pytest_flagperf.report.charts import Bar
from pytest_flagperf.report.closing import BAD, EXPECTED, FAILED, PASSED, REGRESSED, UNFINISHED, Told, tell
from pytest_flagperf.report.html import anchor, document, figures, folded, metric, script, state, style
from pytest_flagperf.report.section import Detail, section
from pytest_flagperf.results import baselines, gates, noise, store
from pytest_flagperf.results.outcome import Outcome
from pytest_flagperf.results.statistics import summarize
from pytest_flagperf.results.store import CaseResult, RunInfo
from pytest_flagperf.results.units import count, quantity

BYTES = 2_500_000
"""What the page may weigh where that is possible; of many cases the charts have fewer points."""
_OF_A_CASE, _OF_A_ROUND, _OF_A_NUMBER = 20_000, 3_500, 6
"""What these weigh, charts apart."""
_CHARTS, _CURVES = 9, 18
"""As many numbers as fill a monitor's chart, and as lie on a line, a round has so many times."""
_READ = 16_000_000
"""Bytes of series that are read where there is so much, of all rounds together."""
_SHOWN = 30
"""So many failed cases are told at the top; the table has all."""
_STATES = (FAILED, REGRESSED, UNFINISHED, EXPECTED, PASSED)
_INTERRUPTED = 2
_FILES = (("results.json", "all results"), ("results.csv", "as a table"), ("junit.xml", "JUnit"))


@dataclass(frozen=True)
class Row:
    """What is kept of a case when its outcomes are gone."""

    told: Told
    compared: tuple[tuple[str, bool], ...]
    """By what it was compared with, an accepted baseline or earlier runs: whether it held."""
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
        return self.told.case

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


def alone(run_dir: Path, page: Path) -> str:
    """A page for a place on this machine, from which its links to logs are right."""
    return document(f"flagperf {run_dir.resolve().name}", body(run_dir, page.resolve().parent))


def extension(run_dir: Path, page: Path) -> str:
    """The body with its style and script, for a page that somebody else begins and ends."""
    return style() + body(run_dir, page.resolve().parent) + script()


def body(run_dir: Path, page_dir: Path) -> str:
    """The part between: needs the style before it and the script after it."""
    problems: list[str] = []
    run_dir = run_dir.resolve()
    info = store.load_info(run_dir, problems) if (run_dir / "results.json").is_file() else None
    detail = _detail(run_dir)
    made: list[tuple[Row, str]] = []
    for case in store.each_case(run_dir, problems):
        told = tell(case, interrupted=info is not None and info.exit_status == _INTERRUPTED)
        case_dir = run_dir / case.outcomes[0].directory.parent
        made.append((_row(case, told), section(case, told, case_dir, page_dir, detail)))
    made.sort(key=lambda pair: pair[0].order)
    rows = [row for row, _ in made]
    parts = [
        _headline(rows, info),
        _facts(rows, info, run_dir, page_dir),
        "".join(f'<p class="warning">{escape(problem)}</p>' for problem in problems),
        _overview(rows),
        _scaling(rows),
        _machines(rows),
        '<h2 id="cases">Cases <button class="plain" data-all="open">open all</button> '
        '<button class="plain" data-all="close">close all</button></h2>',
        *(text for _, text in made),
    ]
    text = f'<main class="flagperf">{"".join(parts)}</main>'
    # What a log says may be no text that can be written.
    return text.encode("utf-8", "replace").decode("utf-8")


def _detail(run_dir: Path) -> Detail:
    """As fine as there is room for."""
    cases = len({path.parent.parent for path in run_dir.glob("*/round*/plan.json")})
    rounds = sum(1 for _ in run_dir.glob("*/round*/plan.json"))
    if not rounds:
        return Detail()
    full = Detail()
    numbers = max(BYTES - _OF_A_CASE * cases - _OF_A_ROUND * rounds, 0) // rounds // _OF_A_NUMBER
    return Detail(
        points=min(max(numbers // _CURVES, 36), full.points),
        samples=min(max(numbers // _CHARTS, 100), full.samples),
        bytes=min(_READ // rounds, full.bytes),
    )


# -- one case ------------------------------------------------------------------------------------------------


def _row(case: CaseResult, told: Told) -> Row:
    one = case.outcomes[0]
    return Row(
        told=told,
        compared=tuple(_compared_with(case)),
        about=_about(one),
        vendor=one.vendor,
        hardware=one.hardware,
        device=one.environment.get("device", ""),
        shape=(one.nnodes, one.nproc),
        rounds=len(case.outcomes),
        unit=one.rate_unit,
        cells=(f"<td>{state(told.state)}</td>", *(cell(case) for _, cell in COLUMNS)),
        p_core=case.median("p_core"),
    )


def _compared_with(case: CaseResult) -> Iterator[tuple[str, bool]]:
    """Of each kind of comparison whether all of it held."""
    found = [verdict for verdicts in case.verdicts.values() for verdict in verdicts if verdict.got != noise.TOO_FEW]
    for kind in (baselines.PREFIX, gates.HISTORY):
        mine = [verdict for verdict in found if verdict.name.split()[0] == kind]
        if mine:
            yield kind, all(verdict.ok for verdict in mine)


def _about(one: Outcome) -> str:
    """What cases must have in common to stand beside each other."""
    precision, data = one.environment.get("precision"), "synthetic data" if one.synthetic else ""
    scale = f"{one.scale} scale" if one.scale else ""
    return ", ".join(filter(None, (f"{one.model} {one.framework}", scale, precision, data)))


# -- what one sees first -------------------------------------------------------------------------------------


def _headline(rows: Sequence[Row], info: RunInfo | None) -> str:
    bad = [row for row in rows if row.told.state in BAD]
    others = [row for row in rows if row.told.state in (UNFINISHED, EXPECTED)]
    unsupported = info.unsupported if info else ()
    told = [_reason(row) for row in (*bad[:_SHOWN], *others[:_SHOWN])]
    more = len(bad) + len(others) - len(told)
    if more:
        told.append(f'<li>and {count(more, "case")} more: <a href="#overview">all of them</a></li>')
    told += [f"<li>not run: {escape(line)}</li>" for line in unsupported[:_SHOWN]]
    kind = FAILED if bad or not rows else EXPECTED if others else PASSED
    listed = f"<ul>{''.join(told)}</ul>" if told else ""
    return f'<div class="headline {_class(kind)}" id="summary"><p>{_counted(rows, len(unsupported))}</p>{listed}</div>'


def _counted(rows: Sequence[Row], unsupported: int) -> str:
    """``12 cases: 2 failed, 1 failed as expected, 9 passed``."""
    if not rows:
        return "No case left a result"
    numbers = Counter(row.told.state for row in rows)
    said = [f'<span class="{_class(name)}">{numbers[name]} {name}</span>' for name in _STATES if numbers[name]]
    if len(said) == 1 and numbers[PASSED]:
        said = [f'<span class="{_class(PASSED)}">{"all passed" if len(rows) > 1 else "passed"}</span>']
    said += [f"{unsupported} cannot run"] if unsupported else []
    return f"{count(len(rows), 'case')}: {', '.join(said)}"


def _class(state: str) -> str:
    return state.replace(" ", "-")


def _reason(row: Row) -> str:
    """The first sentence, and how many more there are."""
    why = row.told.failures or row.told.expected or (row.told.state,)
    more = f" <small>(and {count(len(why) - 1, 'more sentence')})</small>" if len(why) > 1 else ""
    return f"<li>{_link(row)}: {escape(why[0])}{more}</li>"


def _link(row: Row) -> str:
    return f'<a href="#{anchor(row.case)}">{escape(row.case)}</a>'


def _facts(rows: Sequence[Row], info: RunInfo | None, run_dir: Path, page_dir: Path) -> str:
    facts = {
        "Hardware": escape("; ".join(_hardware(rows))),
        "Compared with": escape(_compared(rows)),
        "Began": "" if info is None or info.started_ms is None else escape(_began(info)),
        "Command": "" if info is None else f"<code>{escape(' '.join(info.command))}</code>" * bool(info.command),
        "Made by": "" if info is None else escape(", ".join(f"{name} {said}" for name, said in info.versions.items())),
        "Files": ", ".join(_files(run_dir, page_dir)),
        "To be read": escape(_warned(rows)),
    }
    said = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in facts.items() if text)
    return f'<dl class="facts">{said}</dl>'


def _hardware(rows: Sequence[Row]) -> Iterator[str]:
    """Each kind once, with the shapes it was measured in."""
    for machine in dict.fromkeys(row.machine for row in rows):
        mine = [row for row in rows if row.machine == machine]
        shapes = sorted({row.shape for row in mine}, key=lambda shape: (shape[0] * shape[1], shape))
        devices = [name for name in dict.fromkeys(row.device for row in mine) if name]
        device = f" ({', '.join(devices)})" if devices else ""
        yield f"{machine}{device}: {', '.join(f'{nodes}x{cards}' for nodes, cards in shapes)}"


def _compared(rows: Sequence[Row]) -> str:
    said = []
    for kind, words in ((baselines.PREFIX, "accepted baselines"), (gates.HISTORY, "earlier runs")):
        held = [ok for row in rows for name, ok in row.compared if name == kind]
        if held:
            bad = len(held) - sum(held)
            how = f"{bad} worse" if bad else "none worse"
            said.append(f"{words} ({len(held)} of {count(len(rows), 'case')}, {how})")
    return ", ".join(said) or "no accepted baseline and no earlier runs: throughputs were judged by themselves"


def _began(info: RunInfo) -> str:
    assert info.started_ms is not None
    said = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(info.started_ms / 1000))
    if info.ended_ms is None:
        return said
    return f"{said}, took {quantity((info.ended_ms - info.started_ms) / 1000, 's')}"


def _files(run_dir: Path, page_dir: Path) -> Iterator[str]:
    base = Path(os.path.relpath(run_dir, page_dir))
    for name, said in _FILES:
        if (run_dir / name).is_file():
            yield f'<a href="{escape(quote((base / name).as_posix()))}">{name}</a> ({said})'


def _warned(rows: Sequence[Row]) -> str:
    found = [len(row.told.warnings) for row in rows if row.told.warnings]
    return f"{count(sum(found), 'warning')} on {count(len(found), 'case')}" if found else ""


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
    meant = sum(not outcome.throughput_only for outcome in case.outcomes)
    said = "not asked" if case.converged is None else f"{case.converged}/{meant}"
    return f'<td class="number">{said}</td>'


def _metric(case: CaseResult) -> str:
    got = summarize(outcome.quality.last for outcome in case.outcomes if not outcome.throughput_only)
    beside = case.outcomes[0].target.name
    return _number(metric(case.outcomes, named=False), got.median, beside)


def _speedup(case: CaseResult) -> str:
    cards = case.outcomes[0].cards
    value = case.speedup
    beside = "" if value is None else f"{quantity(value / cards, 'share')} of {cards}"
    return _number("" if value is None else quantity(value, "x"), value, beside)


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


def _overview(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    names = ["state", *(name for name, _ in COLUMNS)]
    head = "".join(
        f"<th data-sort{' class=number' if place > 1 else ''}><button>{escape(name)}</button></th>"
        for place, name in enumerate(names)
    )
    lines = "".join(
        f'<tr data-state="{_class(row.told.state)}" '
        f'data-about="{escape(f"{row.case} {row.vendor} {row.told.state}")}">'
        f"{''.join(row.cells)}</tr>"
        for row in rows
    )
    few = "" if len(rows) > 4 else " hidden"
    states = [name for name in _STATES if any(row.told.state == name for row in rows)]
    buttons = "".join(f'<button data-state="{_class(name)}" aria-pressed="false">{name}</button>' for name in states)
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


def _scaling(rows: Sequence[Row]) -> str:
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


def _machines(rows: Sequence[Row]) -> str:
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
