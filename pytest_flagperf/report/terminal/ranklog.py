"""One rank's log on the terminal, also one of the original's: what it reports, unjudged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flagperf_driver.perflog import number
from pytest_flagperf.printable import printable
from pytest_flagperf.results.logs.ranklog import RankLog, Target, read_rank
from pytest_flagperf.results.measured.metrics import TIMES
from pytest_flagperf.results.units import plain, quantity
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.layout import rank_log

_NO_TARGET = Target("", "", "", None)
_RATES = ("p_whole", "p_train", "p_core")


def lines(path: Path) -> Iterator[str]:
    """The log's figures, by our names; FormatError if the file has no records."""
    log = read_rank(path, 0, _NO_TARGET)
    if log.last_ms is None:
        raise FormatError(f"{path}: no [PerfLog] record found; expected the log of a rank, such as {rank_log(0)}")
    yield f"{path}: {'a log of the original, by our names' if log.names.original else 'a rank log'}, not judged"
    if log.names.difference:
        yield f"  different values for one figure: {printable(str(log.names.difference))}"
    rows = dict(_rows(log))
    width = max(map(len, rows), default=0)
    yield from (f"  {printable(name):{width}}  {text}" for name, text in rows.items())


def _rows(log: RankLog) -> Iterator[tuple[str, str]]:
    end: Mapping[str, Any] = log.finished or {}
    if log.steps:
        last = log.steps[-1]
        yield "step", f"{last.step:,}"
        yield "samples", f"{last.samples:,}"
        yield "throughput", f"{quantity(last.throughput, 'samples/s')} (of the last STEP_END)"
    yield "finished", "yes" if log.finished is not None else "no"
    if "converged" in end:
        yield "converged", f"{'yes' if end['converged'] is True else 'no'} (as the program reports)"
    metrics = end.get("final_metrics")
    for name, value in (metrics if isinstance(metrics, dict) else {}).items():
        yield name, plain(number(value))
    if "final_loss" in end:
        yield "final_loss", plain(number(end["final_loss"]))
    for names, unit in ((_RATES, "samples/s"), (TIMES, "s")):
        yield from ((name, quantity(number(end[name]), unit)) for name in names if end.get(name) is not None)
