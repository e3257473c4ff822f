"""The cost of a stored run's report: time by number of cases, memory by size of logs."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests import many_cases
from tests.reporting import Cost, report

from .section import Goal, Section, table

CASES = (1, 12, 50, 200)
FEW = 8
"""The number of cases with longer logs."""
FACTORS = (1, 10, 50)


def measure_report(cases: int, log_factor: int = 1) -> tuple[float, Cost]:
    """Return the run's size in MiB and the cost of its report."""
    with tempfile.TemporaryDirectory() as folder:
        run = many_cases.make(Path(folder) / f"run{cases}x{log_factor}", cases, log_factor)
        size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file()) / 2**20
        return size, report(run, Path(folder) / "report.html")


def measure() -> Section:
    """Report runs with more cases, then with longer logs."""
    sizes = [*((cases, 1) for cases in CASES), *((FEW, factor) for factor in FACTORS)]
    costs = {size: measure_report(*size) for size in sizes}
    rows = [
        (f"{cases}", f"x{factor}", f"{size:.0f}", f"{cost.seconds:.2f}", f"{cost.peak_mib:.0f}", f"{cost.page_mib:.2f}")
        for (cases, factor), (size, cost) in costs.items()
    ]
    head = ("cases", "logs", "the run's files (MiB)", "seconds", "peak memory (MiB)", "page (MiB)")
    grown = costs[FEW, FACTORS[-1]][1].peak_mib / costs[FEW, 1][1].peak_mib
    goals = [
        Goal("200 cases", 10, costs[200, 1][1].seconds, "s", noise=0.2),
        Goal("the page of 50 cases", 3, costs[50, 1][1].page_mib, "MiB"),
        Goal(f"memory with {FACTORS[-1]} times the logs, beside once", 1.5, grown),
    ]
    return Section([table(head, rows)], goals)
