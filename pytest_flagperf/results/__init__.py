"""Results of stored runs: as tables (``load``, ``load_long``) and as typed objects (``load_runs``). docs/python.md.

>>> from pytest_flagperf.results import load
>>> load("reports").groupby("case")["p_core"].median()  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

    from pytest_flagperf.results.measured.metrics import MetricValue
    from pytest_flagperf.results.measured.outcome import Outcome
    from pytest_flagperf.results.tables.store import RunInfo, StoredRun
    from pytest_flagperf.results.verdicts import Verdict
    from pytest_flagperf.results.verdicts.case_result import CaseResult

__all__ = [
    "CaseResult",
    "MetricValue",
    "Outcome",
    "RunInfo",
    "StoredRun",
    "Verdict",
    "load",
    "load_long",
    "load_runs",
]
_MODULES = {
    "CaseResult": "verdicts.case_result",
    "MetricValue": "measured.metrics",
    "Outcome": "measured.outcome",
    "RunInfo": "tables.store",
    "StoredRun": "tables.store",
    "Verdict": "verdicts",
}


def __getattr__(name: str) -> Any:
    """Import a class when it is used: pytest starts faster without the readers of results."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def load(paths: str | Path | Iterable[str | Path]) -> pandas.DataFrame:
    """Return stored runs as a table with one row per round and one column per metric (columns: docs/results.md).

    ``paths`` are run directories or folders of them.
    """
    from pytest_flagperf.results.tables import frames

    return frames.load(paths)


def load_long(paths: str | Path | Iterable[str | Path]) -> pandas.DataFrame:
    """Return a table with one row per round and metric: value, unit, direction and how it was measured."""
    from pytest_flagperf.results.tables import frames

    return frames.load_long(paths)


def load_runs(paths: str | Path | Iterable[str | Path]) -> list[StoredRun]:
    """Return stored runs as objects: their cases with the outcomes of all rounds and the verdicts.

    ``paths`` are run directories or folders of them. Files that cannot be read are listed in ``problems`` of the run.
    """
    from pytest_flagperf.results.tables import store
    from pytest_flagperf.results.tables.runs import find_runs

    return [store.load_run(directory) for directory in find_runs(paths)]
