"""Stored runs as pandas tables; pandas is only imported when a table is made."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_flagperf.packages import need
from pytest_flagperf.results.measured.metrics import MetricValue
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.tables import columns, store
from pytest_flagperf.results.tables.runs import find_runs
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.results.verdicts.case_result import CaseResult

if TYPE_CHECKING:
    import pandas

CASE = ("run", "case", "model", "framework", "vendor", "hardware", "nnodes", "nproc", "cards", "round")
"""The columns that identify a row of both tables."""
ABOUT = (
    "seed", "scale", "precision", "synthetic", "throughput_only", "state", "ok", "converged", "failure",
    "stop_reason", "samples", "steps", "epochs", "batch_per_card", "accumulation", "measured_steps", "warmup_steps",
    "sample_unit", "metric", "metric_value", "metric_unit", "metric_direction", "target",
)  # fmt: skip
ORIGIN = ("device", "framework_version", "started", "ended", "fingerprint", "directory")
LONG = (*CASE, "metric", "value", "unit", "direction", "how", "samples", "warmup")
COUNTS = (
    "nnodes", "nproc", "cards", "round", "seed", "samples", "steps", "batch_per_card", "accumulation",
    "measured_steps", "warmup_steps", "warmup",
)  # fmt: skip
FLAGS = ("synthetic", "throughput_only", "ok", "converged")
NUMBERS = ("epochs", "metric_value", "target")
MIXED = "sample_unit/s"
"""The unit of a throughput column if suites count different samples; see the column sample_unit of each row."""

Paths = str | Path | Iterable[str | Path]


class RunWarning(UserWarning):
    """A part of a run directory could not be read; the table has the rest."""


@dataclass(frozen=True)
class _Row:
    run: StoredRun
    case: CaseResult
    outcome: Outcome
    metrics: Mapping[str, MetricValue]


def load(paths: Paths) -> pandas.DataFrame:
    """Return one row per round; ``attrs["units"]`` and ``attrs["directions"]`` describe the metrics' columns."""
    need("pandas")
    rows = list(_rows(paths))
    metrics = _columns(rows)
    names = [*CASE, *ABOUT, *metrics, *ORIGIN]
    frame = _typed([_wide(row) for row in rows], names, (*NUMBERS, *metrics))
    frame.attrs["units"] = {
        column: _common(rows, column, "unit") or (MIXED if column.startswith("p_") else "mixed") for column in metrics
    }
    frame.attrs["directions"] = {column: _common(rows, column, "direction") for column in metrics}
    return frame


def load_long(paths: Paths) -> pandas.DataFrame:
    """Return one row per round and metric."""
    need("pandas")
    rows = [_long(row, metric) for row in _rows(paths) for metric in row.metrics.values()]
    return _typed(rows, LONG, ("value",))


def _rows(paths: Paths) -> Iterator[_Row]:
    for directory in find_runs(paths):
        run = store.load_run(directory)
        for problem in run.problems:
            warnings.warn(problem, RunWarning, stacklevel=4)
        for case in run.cases:
            for outcome in case.outcomes:
                metrics = _metrics(case, outcome)
                yield _Row(run, case, outcome, {metric.name: metric for metric in metrics})


def _metrics(case: CaseResult, outcome: Outcome) -> Iterator[MetricValue]:
    yield from outcome.metrics
    one, many = case.one_card.p_core if case.one_card else None, outcome.value("p_core")
    if case.one_card is not None and one and one > 0 and many is not None:
        where = f"over one card's p_core ({case.one_card.where_from})"
        yield MetricValue("speedup", many / one, "x", "higher", f"p_core {where}")
        yield MetricValue("efficiency", many / one / outcome.cards, "share", "higher", f"p_core of a card {where}")


def _columns(rows: Iterable[_Row]) -> list[str]:
    """The metrics of the training, each suite's own, and the sampled ones, in the order of results.csv."""
    names = {_column(name) for row in rows for name in row.metrics}
    first, last = ([name for name, _ in figures if name in names] for figures in (columns.FIGURES, columns.MEANWHILE))
    return [*first, *sorted(names - {*first, *last}), *last]


def _column(name: str) -> str:
    """The column of a metric; a suffix avoids the names of other columns."""
    return f"{name}_metric" if name in {*CASE, *ABOUT, *ORIGIN} else name


def _wide(row: _Row) -> dict[str, Any]:
    outcome = row.outcome
    values = columns.row(row.run.directory.resolve().name, outcome)
    cells: dict[str, Any] = {name: values[name] for name in (*CASE, *ABOUT, *ORIGIN) if name in values}
    cells.update(
        started=outcome.started_ms, ended=outcome.ended_ms, directory=str(row.run.directory / outcome.directory)
    )
    return cells | {_column(metric.name): metric.value for metric in row.metrics.values()}


def _long(row: _Row, metric: MetricValue) -> dict[str, Any]:
    cells = {name: getattr(row.outcome, name, None) for name in CASE}
    cells["run"] = row.run.directory.resolve().name
    values = {name: getattr(metric, name) for name in ("value", "unit", "direction", "how", "samples", "warmup")}
    return {**cells, "metric": metric.name, **values}


def _common(rows: Iterable[_Row], column: str, what: str) -> str | None:
    """Return the unit or direction of a column's metrics; None if they differ."""
    values = {getattr(one, what) for row in rows for name, one in row.metrics.items() if _column(name) == column}
    return values.pop() if len(values) == 1 else None


def _typed(rows: list[dict[str, Any]], names: Iterable[str], numbers: Iterable[str]) -> pandas.DataFrame:
    """Make a table with the same column types for any rounds: counts and flags may be missing."""
    import pandas

    frame = pandas.DataFrame(rows, columns=list(names))
    kinds: dict[str, str] = dict.fromkeys(frame.columns, "string")
    kinds.update(dict.fromkeys(numbers, "float64"), **dict.fromkeys(COUNTS, "Int64"), **dict.fromkeys(FLAGS, "boolean"))
    times = [name for name in ("started", "ended") if name in frame.columns]
    frame = frame.astype({name: kind for name, kind in kinds.items() if name in frame.columns and name not in times})
    for name in times:
        frame[name] = pandas.to_datetime(frame[name].astype("Int64"), unit="ms", utc=True)
    return frame
