"""What the report of a stored run costs: time by the number of cases, memory by the size of the logs.

    .venv/bin/python -m benchmarks.report_cost

The goals: 200 cases in at most 10 s, a page of 50 cases under 3 MB, and memory that does not grow with the logs.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests import many_cases
from tests.reporting import Cost, report

CASES = (1, 12, 50, 200)
FEW = 8
"""Cases whose logs are made longer."""
FACTORS = (1, 10, 50)


def of(folder: Path, cases: int, log_factor: int = 1) -> tuple[float, Cost]:
    """The run's size in MiB, and what its report costs."""
    run = many_cases.make(folder / f"run{cases}x{log_factor}", cases, log_factor)
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file()) / 2**20
    return size, report(run, folder / "report.html")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, nargs="*", default=CASES)
    parser.add_argument("--factors", type=int, nargs="*", default=FACTORS)
    given = parser.parse_args()
    print("| cases | logs | the run's files | seconds | peak memory | page |")
    print("|---|---|---|---|---|---|")
    for cases, factor in [*((cases, 1) for cases in given.cases), *((FEW, factor) for factor in given.factors)]:
        with tempfile.TemporaryDirectory() as folder:
            size, cost = of(Path(folder), cases, factor)
        print(
            f"| {cases} | x{factor} | {size:.0f} MiB | {cost.seconds:.2f} | {cost.peak_mib:.0f} MiB |"
            f" {cost.page_mib:.2f} MiB |",
            flush=True,
        )


if __name__ == "__main__":
    main()
