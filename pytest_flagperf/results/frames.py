"""Stored runs as pandas tables; pandas is imported when one is asked for."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_flagperf.results import columns, store
from pytest_flagperf.results.measured.metrics import MetricValue
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.runs import find_runs
from pytest_flagperf.results.store import CaseResult, StoredRun

if TYPE_CHECKING:
    import pandas

CASE = ("run", "case", "model", "framework", "vendor", "hardware", "nnodes", "nproc", "cards", "round")
"""What a row of either table is about."""
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
"""The unit of a throughput in a table of suites that count different samples: each row's own says which."""

Paths = str | Path | Iterable[str | Path]


class TablesMissing(ImportError):
    """pandas or pyarrow is not there; the text says what to install."""


class RunWarning(UserWarning):
    """Something in a run directory could not be read; what could is in the table."""


@dataclass(frozen=True)
class _Row:
    run: StoredRun
    case: CaseResult
    outcome: Outcome
    metrics: Mapping[str, MetricValue]


def load(paths: Paths) -> pandas.DataFrame:
    """One row per round; ``attrs["units"]`` and ``attrs["directions"]`` tell of the metrics' columns."""
    need("pandas")
    rows = list(_rows(paths))
    metrics = _columns(rows)
    names = [*CASE, *ABOUT, *metrics, *ORIGIN]
    frame = _typed([_wide(row) for row in rows], names, (*NUMBERS, *metrics))
    frame.attrs["units"] = {column: _unit(rows, column) for column in metrics}
    frame.attrs["directions"] = {column: _direction(rows, column) for column in metrics}
    return frame


def load_long(paths: Paths) -> pandas.DataFrame:
    """One row per round and metric."""
    need("pandas")
    rows = [_long(row, metric) for row in _rows(paths) for metric in row.metrics.values()]
    return _typed(rows, LONG, ("value",))


def need(*packages: str) -> None:
    """Raise a TablesMissing unless they can be imported."""
    from importlib.util import find_spec

    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        raise TablesMissing(f"tables need {names}, which is not installed: pip install 'pytest-flagperf[tables]'")


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
    """The training's, each suite's own, and what was sampled meanwhile; otherwise in the order of results.csv."""
    found = {_column(name) for row in rows for name in row.metrics}
    first, last = ([name for name, _ in figures if name in found] for figures in (columns.FIGURES, columns.MEANWHILE))
    return [*first, *sorted(found - {*first, *last}), *last]


def _column(name: str) -> str:
    """A suite's metric may have the name of a column that is not a metric's."""
    return f"{name}_metric" if name in {*CASE, *ABOUT, *ORIGIN} else name


def _wide(row: _Row) -> dict[str, Any]:
    outcome = row.outcome
    told = columns.row(row.run.directory.resolve().name, outcome)
    found: dict[str, Any] = {name: told[name] for name in (*CASE, *ABOUT, *ORIGIN) if name in told}
    found.update(
        started=outcome.started_ms, ended=outcome.ended_ms, directory=str(row.run.directory / outcome.directory)
    )
    return found | {_column(metric.name): metric.value for metric in row.metrics.values()}


def _long(row: _Row, metric: MetricValue) -> dict[str, Any]:
    found = {name: getattr(row.outcome, name, None) for name in CASE}
    found["run"] = row.run.directory.resolve().name
    told = {name: getattr(metric, name) for name in ("value", "unit", "direction", "how", "samples", "warmup")}
    return {**found, "metric": metric.name, **told}


def _unit(rows: Iterable[_Row], column: str) -> str:
    units = {metric.unit for row in rows for name, metric in row.metrics.items() if _column(name) == column}
    return units.pop() if len(units) == 1 else MIXED if column.startswith("p_") else "mixed"


def _direction(rows: Iterable[_Row], column: str) -> str | None:
    found = {metric.direction for row in rows for name, metric in row.metrics.items() if _column(name) == column}
    return found.pop() if len(found) == 1 else None


def _typed(rows: list[dict[str, Any]], names: Iterable[str], numbers: Iterable[str]) -> pandas.DataFrame:
    """Types that do not depend on which rounds were there: counts and flags may be missing, text is text."""
    import pandas

    frame = pandas.DataFrame(rows, columns=list(names))
    kinds: dict[str, str] = dict.fromkeys(frame.columns, "string")
    kinds.update(dict.fromkeys(numbers, "float64"), **dict.fromkeys(COUNTS, "Int64"), **dict.fromkeys(FLAGS, "boolean"))
    times = [name for name in ("started", "ended") if name in frame.columns]
    frame = frame.astype({name: kind for name, kind in kinds.items() if name in frame.columns and name not in times})
    for name in times:
        frame[name] = pandas.to_datetime(frame[name].astype("Int64"), unit="ms", utc=True)
    return frame
