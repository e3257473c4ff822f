"""Measure how often the validity warning busy appears on a busy and on a quiet machine, on this machine.

    .venv/bin/python -m benchmarks.busy rounds DIR [--rounds 20] [--beside 0 1 2 4] [--suites glm resnet50]
    .venv/bin/python -m benchmarks.busy bench DIR [--runs 20] [--beside 0 2]

``rounds`` trains small suites repeatedly, together with each number of busy processes. It prints how long ranks waited
for a core, how much CPU time other processes used, and how many rounds had the validity warning busy. Without busy
processes, such warnings are false alarms if the machine is idle. ``bench`` runs the suites of ``make bench``,
alternating between the numbers of busy processes, and prints how each run ended. Both print a table for
docs/measuring.md.

The results are kept in DIR; existing rounds and runs are not repeated.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pytest_flagperf.report.terminal.summary import summarize_run
from pytest_flagperf.results.figures.units import plain, quantity
from pytest_flagperf.results.measured.busy import STOLEN, WAITED, HostLoad
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf.results.tables import store
from pytest_flagperf.results.tables.store import StoredRun
from pytest_flagperf.results.verdicts.case_result import CaseResult

REPO = Path(__file__).resolve().parent.parent


@contextmanager
def spinning(number: int) -> Iterator[None]:
    """Run ``number`` busy processes, which are not bound to cores, for the duration of the block."""
    code = "while True: pass"
    started = [subprocess.Popen([sys.executable, "-c", code], start_new_session=True) for _ in range(number)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def pytest_run(reports: Path, *arguments: str) -> int:
    """Run pytest with these paths and options and write its output next to the results."""
    reports.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--reports={reports}", *arguments]
    with (reports / "pytest.log").open("a") as log:
        return subprocess.run(command, cwd=REPO, stdout=log, stderr=log, check=False).returncode


def benched() -> list[str]:
    """Return what ``make bench`` passes to pytest: the folders of three models, and their framework."""
    (arguments,) = re.findall(r"(?m)^BENCHED := (.*)", (REPO / "Makefile").read_text(encoding="utf-8"))
    return str(arguments).split()


def stored(reports: Path) -> list[StoredRun]:
    """Return the finished runs."""
    return [store.load_run(path.parent) for path in sorted(reports.glob("run*/results.json"))]


def head() -> None:
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load average {load}\n")


# -- rounds --------------------------------------------------------------------------------------------------


def rounds(folder: Path, number: int, beside: Sequence[int], suites: Sequence[str]) -> None:
    head()
    print(
        f"A round gets the validity warning busy for {quantity(WAITED, 'share')} of waiting or"
        f" {quantity(STOLEN, 'share')} of stolen time, or more.\n"
    )
    print(
        "| busy processes | case | rounds | core_wait: median (highest) | other_cores | core_stolen (highest) |"
        " p_core | warned of waiting | warned of stolen time |"
    )
    print("|---:|---|---:|---:|---:|---:|---:|---:|---:|")
    for count in beside:
        for suite in suites:
            reports = folder / f"rounds-{suite}-beside{count}"
            if not stored(reports):
                with spinning(count):
                    pytest_run(reports, f"suites/{suite}", "-k", "throughput", f"--repeat={number}")
            for case in (case for run in stored(reports) for case in run.cases):
                print(f"| {count} | {line(case)} |", flush=True)


def line(case: CaseResult) -> str:
    outcomes = [outcome for outcome in case.outcomes if outcome.ok]
    waited, others, stolen, speed = (
        metric_values(outcomes, name) for name in ("core_wait", "other_cores", "core_stolen", "p_core")
    )
    # Apply the current limits also to stored rounds.
    names = ("core_wait", "other_cores", "core_stolen")
    loads = [HostLoad(*(outcome.value(name) for name in names)) for outcome in outcomes]
    return " | ".join(
        [
            case.without_repeat,
            str(len(outcomes)),
            spread(waited, "share"),
            middle(others, ""),
            spread(stolen, "share"),
            middle(speed, outcomes[0].rate_unit if outcomes else ""),
            str(sum(load.is_busy for load in loads)),
            str(sum(load.has_stolen_time for load in loads)),
        ]
    )


def metric_values(outcomes: Sequence[Outcome], name: str) -> list[float]:
    return [value for outcome in outcomes if (value := outcome.value(name)) is not None]


def middle(values: Sequence[float], unit: str) -> str:
    return quantity(statistics.median(values), unit, 3) if values else "not measured"


def spread(values: Sequence[float], unit: str) -> str:
    return f"{middle(values, unit)} ({quantity(max(values), unit, 3)})" if values else "not measured"


# -- runs of make bench --------------------------------------------------------------------------------------


def bench(folder: Path, runs: int, beside: Sequence[int]) -> None:
    head()
    print("| run | busy processes | exit code | verdict | speed-ups | rounds with busy | longest wait |")
    print("|---:|---:|---:|---|---|---:|---:|")
    ends: list[tuple[int, bool, bool]] = []
    for number in range(1, runs + 1):
        count = beside[(number - 1) % len(beside)]
        reports = folder / f"bench{number:02d}-beside{count}"
        if not stored(reports):
            with spinning(count):
                pytest_run(reports, *benched())
        for run in stored(reports)[-1:]:
            print(f"| {number} | {count} | {ended(run)} |", flush=True)
            ends.append((count, is_green(run), bool(busy_rounds(run))))
    print()
    for count in beside:
        results = [(green, busy) for processes, green, busy in ends if processes == count]
        green, busy = sum(result[0] for result in results), sum(result[1] for result in results)
        print(
            f"With {count} busy processes: {len(results)} runs, {green} ended with exit code 0,"
            f" {busy} had rounds with the validity warning busy."
        )


def ended(run: StoredRun) -> str:
    busy, waits = (
        busy_rounds(run),
        metric_values([outcome for case in run.cases for outcome in case.outcomes], "core_wait"),
    )
    speedups = [f"{case.outcomes[0].model} {speedup(case)}" for case in run.cases if case.speedup_text]
    code = run.info.exit_status if run.info is not None else None
    cells = [
        code,
        summarize_run(run).verdict(),
        ", ".join(speedups),
        len(busy),
        quantity(max(waits, default=None), "share"),
    ]
    return " | ".join(map(str, cells))


def speedup(case: CaseResult) -> str:
    """Return the speed-up as in its verdict, and how often it was measured again."""
    judged = [verdict for verdicts in case.verdicts.values() for verdict in verdicts if verdict.name == "speedup"]
    turns = len(case.one_card.many) if case.one_card is not None else 0
    again = f", measured {plain(turns)} more times" if turns else ""
    return (judged[0].got if judged else case.speedup_text) + again


def busy_rounds(run: StoredRun) -> list[Outcome]:
    return [outcome for case in run.cases for outcome in case.outcomes if outcome.busy]


def is_green(run: StoredRun) -> bool:
    return run.info is not None and run.info.exit_status == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rounds", "bench"))
    parser.add_argument("folder", type=Path, help="folder of the results")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each case (default: 20)")
    parser.add_argument("--runs", type=int, default=20, help="runs of make bench (default: 20)")
    parser.add_argument(
        "--beside", type=int, nargs="*", help="numbers of busy processes (default: rounds 0 1 2 4, bench 0 2)"
    )
    parser.add_argument(
        "--suites", nargs="*", default=["glm", "resnet50"], help="suites for rounds (default: glm resnet50)"
    )
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.what == "rounds":
        rounds(folder, options.rounds, options.beside or (0, 1, 2, 4), options.suites)
    else:
        bench(folder, options.runs, options.beside or (0, 2))


if __name__ == "__main__":
    main()
