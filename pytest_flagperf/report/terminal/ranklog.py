"""The figures of a single rank log, also of original FlagPerf, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flagperf_driver.perflog import number
from pytest_flagperf.printable import printable
from pytest_flagperf.results.figures.units import plain, quantity
from pytest_flagperf.results.logs.ranklog import RankLog, Target, read_rank
from pytest_flagperf.results.measured.metrics import TIMES
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.layout import rank_log

_NO_TARGET = Target("", "", "", None)
_RATES = ("p_whole", "p_train", "p_core")


def lines(path: Path) -> Iterator[str]:
    """Yield the figures of the log; FormatError if the file has no records."""
    log = read_rank(path, 0, _NO_TARGET)
    if log.last_ms is None:
        raise FormatError(f"{path}: no [PerfLog] record; expected the log of a rank, such as {rank_log(0)}")
    kind = "rank log of FlagPerf, with names of pytest-flagperf" if log.names.original else "rank log"
    yield f"{path}: {kind}, not judged"
    if log.names.difference:
        yield f"  different values of the same figure: {printable(str(log.names.difference))}"
    rows = dict(_rows(log))
    width = max(map(len, rows), default=0)
    yield from (f"  {printable(name):{width}}  {text}" for name, text in rows.items())


def _rows(log: RankLog) -> Iterator[tuple[str, str]]:
    finished: Mapping[str, Any] = log.finished or {}
    if log.steps:
        last = log.steps[-1]
        yield "step", f"{last.step:,}"
        yield "samples", f"{last.samples:,}"
        yield "throughput", f"{quantity(last.throughput, 'samples/s')} (last STEP_END)"
    yield "finished", "yes" if log.finished is not None else "no"
    if "converged" in finished:
        yield "converged", f"{'yes' if finished['converged'] is True else 'no'} (reported by the program)"
    metrics = finished.get("final_metrics")
    for name, value in (metrics if isinstance(metrics, dict) else {}).items():
        yield name, plain(number(value))
    if "final_loss" in finished:
        yield "final_loss", plain(number(finished["final_loss"]))
    for names, unit in ((_RATES, "samples/s"), (TIMES, "s")):
        yield from ((name, quantity(number(finished[name]), unit)) for name in names if finished.get(name) is not None)
