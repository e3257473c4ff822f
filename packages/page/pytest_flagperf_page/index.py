"""The index page of a folder of runs: the newest run of each case with its trend, and all runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from pytest_flagperf.results.comparing.comparable import config_differences
from pytest_flagperf.results.comparing.stored_runs import NamedRounds, without_copies
from pytest_flagperf.results.figures import noise
from pytest_flagperf.results.figures.units import count
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.tables.store import RunInfo
from pytest_flagperf.results.verdicts.case_result import STATES, CaseResult, summarize_case
from pytest_flagperf.stored.layout import JUNIT, RESULTS, TABLE

from . import chart_html, trend_html
from .case_table import cell
from .comparisons import machines, scaling
from .headline import headline
from .html import (
    Markup,
    Name,
    Number,
    address,
    document,
    folded,
    items,
    linked,
    page_of,
    state,
    table,
)
from .rows import RATES, Row, overview, row_of
from .trend import Trend, short_commit

_MAX_SHOWN = 20
"""The number of runs from which on older ones are folded."""
_LEFT_OUT = ("throughput", RATES["p_whole"], "limited by", "e2e")
"""The columns of a run's overview that only its own page has."""
_NEWEST, _RUNS, _MACHINE, _VALID = "newest run", "runs", "machine", "valid rounds"
_COLUMNS = {
    _NEWEST: "the start (UTC) of the case's newest run",
    _RUNS: "how many runs have the case",
    _MACHINE: "the chip that the machine of the newest run reported, or else its processor",
}


@dataclass(frozen=True)
class _Run:
    """A run without the curves of its rounds; ``states``: how many of its cases are in each state.

    ``machine``: the chips that its machines reported, or else their processors.
    """

    directory: Path
    started_ms: int
    commits: tuple[str, ...]
    machine: str
    valid: str
    states: Mapping[str, int]
    info: RunInfo | None
    is_interrupted: bool


@dataclass
class _Case:
    """The newest run of a case, with curves; the valid rounds of earlier runs, without."""

    newest: CaseResult
    run: _Run
    earlier: list[NamedRounds]
    runs: int = 1


def standalone(folder: Path, directories: Sequence[Path], to: Path, problems: list[str] | None = None) -> str:
    """Return a complete page, with links relative to the file ``to``; ``problems``: what could not be read."""
    problems = [] if problems is None else problems
    page_dir = to.resolve().parent
    cases: dict[tuple[str, ...], _Case] = {}
    runs = sorted((_read(directory, cases, problems) for directory in directories), key=lambda run: -run.started_ms)
    for case in cases.values():
        _keep_comparable(case)
    of_cases = [_row(case, page_dir) for case in cases.values()]
    named = [(case.newest.without_repeat, row.trends) for case, row in zip(cases.values(), of_cases, strict=True)]
    rows = sorted(of_cases, key=lambda row: row.order)
    if len({row.cells.get(_MACHINE) for row in rows}) == 1:
        rows = [replace(row, cells={name: row.cells[name] for name in row.cells if name != _MACHINE}) for row in rows]
    times = [trend_html.date(run.started_ms) for run in (runs[-1], runs[0]) if run.started_ms]
    between = f" from {' to '.join(times)} UTC" if times else ""
    about = f"{count(len(runs), 'run')}{between}; each case by its newest run"
    parts = [
        headline(rows),
        f'<p class="soft">{escape(about)}</p>',
        "".join(f'<p class="warning">{escape(problem)}</p>' for problem in problems),
        overview(rows, {}, _COLUMNS),
        _history(named),
        _runs(runs, page_dir),
        scaling(rows),
        machines(rows),
    ]
    return document(f"flagperf {folder.resolve().name}", f'<main class="flagperf">{"".join(parts)}</main>')


def _read(directory: Path, cases: dict[tuple[str, ...], _Case], problems: list[str]) -> _Run:
    """Read a run, and add its cases to ``cases``: only the newest run of a case keeps its curves."""
    stored = store.load_run(directory.resolve())
    problems += stored.problems
    rounds = [outcome for case in stored.cases for outcome in case.outcomes]
    run = _Run(
        directory=stored.directory,
        started_ms=stored.started_ms,
        commits=tuple(dict.fromkeys(commit for outcome in rounds if (commit := short_commit(outcome)))),
        machine=_machine(rounds),
        valid="all" if all(one.valid for one in rounds) else f"{sum(one.valid for one in rounds)} of {len(rounds)}",
        states=Counter(summarize_case(case, interrupted=stored.is_interrupted).state for case in stored.cases),
        info=stored.info,
        is_interrupted=stored.is_interrupted,
    )
    for case in stored.cases:
        first = case.outcomes[0]
        key: tuple[str, ...] = (case.without_repeat, first.vendor, str(first.scale))
        while (known := cases.get(key)) is not None and known.run is run:
            key = (*key, case.case)  # the run also has the case with another number of rounds
        if known is None:
            cases[key] = _Case(case, run, [])
            continue
        known.runs += 1
        if run.started_ms > known.run.started_ms:
            known.newest, known.run, case, older = case, run, known.newest, known.run
        else:
            older = run
        valid = tuple(replace(one, steps=(), evaluations=(), drawings=()) for one in case.outcomes if one.valid)
        if valid:
            known.earlier.append((older.directory.name, valid))
    return run


def _machine(rounds: Iterable[Outcome]) -> str:
    """Return the chips that the machines of the rounds reported, or else their processors; empty without a report."""
    reported = (one.machine.get("chip") or one.machine.get("cpu") for one in rounds)
    return ", ".join(dict.fromkeys(str(name) for name in reported if name))


def _keep_comparable(case: _Case) -> None:
    """Leave out the earlier runs that are not comparable with the newest, and order the others by time."""
    first = case.newest.outcomes[0]
    like = [(name, rounds) for name, rounds in case.earlier if not config_differences(rounds[0], first)]
    like.sort(key=lambda named: named[1][0].started_ms or 0)
    case.earlier = without_copies(like)[-noise.MEMORY :]


def _row(case: _Case, page_dir: Path) -> Row:
    """Return the row of the newest run, with the trend over the earlier runs that are comparable with it."""
    summary = summarize_case(case.newest, interrupted=case.run.is_interrupted)
    row = row_of(case.newest, summary, case.earlier, case.run.directory.name, page_of(case.run.directory, page_dir))
    started = case.run.started_ms
    newest = cell(escape(trend_html.date(started)), started, case.run.directory.name, number=False)
    cells = {_NEWEST: newest, _RUNS: cell(str(case.runs), case.runs)}
    cells[_MACHINE] = cell(escape(_machine(case.newest.outcomes)), number=False)
    kept = {name: text for name, text in row.cells.items() if name not in _LEFT_OUT}
    return replace(row, cells={**kept, **{name: text for name, text in cells.items() if text}})


def _history(named: Iterable[tuple[str, Sequence[Trend]]]) -> str:
    """Return the trends of each case as charts, and where the level changed last."""
    found = [(name, trend) for name, trends_of_case in named for trend in trends_of_case]
    sentences = [f"{name}: {text}" for name, trend in found for text in trend.sentences()[:1]]
    drawn = [(name, chart) for name, trend in found if (chart := trend_html.chart(trend)) is not None]
    titled = [replace(chart, title=f"{name}: {chart.title}") for name, chart in drawn]
    text = f"{items(sentences)}{chart_html.html(titled)}"
    return f'<h2 id="history">History</h2>{text}' if text else ""


# -- the runs ------------------------------------------------------------------------------------------------


def _runs(runs: Sequence[_Run], page_dir: Path) -> str:
    shown, older = runs[:_MAX_SHOWN], runs[_MAX_SHOWN:]
    more = folded(count(len(older), "older run"), _table(older, page_dir)) if older else ""
    return f'<h2 id="runs">Runs</h2>{_table(shown, page_dir)}{more}'


def _table(runs: Sequence[_Run], page_dir: Path) -> str:
    head = ("run", "start (UTC)", "took", "cases", _MACHINE, _VALID, "commit", "files")
    rows = [
        (
            linked(run.directory.name, page_of(run.directory, page_dir)),
            Name(trend_html.date(run.started_ms)),
            Number(run.info.took if run.info else ""),
            Markup(_states(run)),
            Name(run.machine),
            Name(run.valid),
            Name(", ".join(run.commits)),
            Markup(", ".join(_files(run, page_dir))),
        )
        for run in runs
    ]
    alike = [name for place, name in enumerate(head) if len({row[place] for row in rows}) == 1]
    kept = [place for place, name in enumerate(head) if name not in (_MACHINE, _VALID) or name not in alike]
    return table([head[place] for place in kept], [[row[place] for place in kept] for row in rows])


def _states(run: _Run) -> str:
    """Return how many cases are in each state, the worst first, and how many were not run."""
    labels = [state(name, f"{run.states[name]} {name}") for name in STATES if name in run.states]
    labels += [f"{len(run.info.not_run)} not run"] if run.info and run.info.not_run else []
    return " ".join(labels)


def _files(run: _Run, page_dir: Path) -> Iterator[str]:
    for name in (RESULTS, TABLE, JUNIT):
        if (run.directory / name).is_file():
            yield linked(name, address(run.directory / name, page_dir))
