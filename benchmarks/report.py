"""The cost of a stored run's report: time by number of cases, memory by size of logs, and its page in a browser."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from tests.helpers import many_cases
from tests.helpers.reporting import Cost, report
from tests.screens import browser as browsers

from .section import Goal, Section, table

CASES = (1, 12, 50, 200)
FEW = 8
"""The number of cases with longer logs."""
FACTORS = (1, 10, 50)
OPENED = (12, 200)
"""The numbers of cases whose page is opened in a browser."""
TIMES = 5
_FILTER = "main.flagperf .filter-cases input"


def measure_report(cases: int, log_factor: int = 1) -> tuple[float, Cost]:
    """Return the run's size in MiB and the cost of its report."""
    with tempfile.TemporaryDirectory() as folder:
        run = many_cases.make(Path(folder) / f"run{cases}x{log_factor}", cases, log_factor)
        size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file()) / 2**20
        return size, report(run, Path(folder) / "report.html")


def measure_browser(cases: int) -> tuple[float, float]:
    """Return the seconds until a page is loaded in Chromium, and until its filtered overview is drawn: medians."""
    loaded, filtered = [], []
    with tempfile.TemporaryDirectory() as folder, browsers.browser() as browser:
        page = Path(folder) / "report.html"
        report(many_cases.make(Path(folder) / "run", cases), page)
        for _ in range(TIMES):
            with browsers.shown(browser, page) as seen:
                loaded.append(seen.page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd") / 1e3)
                began = time.perf_counter()
                seen.page.locator(_FILTER).first.fill("h200 2:8")
                seen.page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
                filtered.append(time.perf_counter() - began)
    return statistics.median(loaded), statistics.median(filtered)


def measure() -> Section:
    """Report runs with more cases, then with longer logs; open the pages if there is a browser."""
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
    tables = [table(head, rows)]
    if not browsers.missing():
        opened = {cases: measure_browser(cases) for cases in OPENED}
        titles = ("cases", "page loaded (s)", "overview filtered (s)")
        times = [(f"{cases}", *(f"{value:.2f}" for value in both)) for cases, both in opened.items()]
        tables.append(table(titles, times))
        goals.append(Goal("the page of 200 cases is loaded", 3, opened[200][0], "s", noise=0.2))
        goals.append(Goal("the overview of 200 cases is filtered", 0.5, opened[200][1], "s", noise=0.2))
    return Section(tables, goals)
