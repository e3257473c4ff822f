"""Measure the harness, compare with the goals, and write docs/performance.md and benchmarks/README.md.

    python -m benchmarks                      # run all benchmarks and write the documents (make bench-harness)
    python -m benchmarks collect logs         # run these benchmarks and print the results

The exit code is 1 if a measurement misses its goal by more than its noise.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from flagperf_driver.node.sampling.host_counters import facts

from . import collect, logs, many_hosts, preflight, report, rounds, sampler, serving, slurm, step, whole_run
from .section import REPO, Goal, Section, summary

BENCHMARKS: Mapping[str, Callable[[], Section]] = {
    "whole_run": whole_run.measure,
    "rounds": rounds.measure,
    "preflight": preflight.measure,
    "slurm": slurm.measure,
    "many_hosts": many_hosts.measure,
    "sampler": sampler.measure,
    "step": step.measure,
    "serving": serving.measure,
    "collect": collect.measure,
    "logs": logs.measure,
    "report": report.measure,
}
TURNS = 5_000_000
"""Turns of a loop that shows the speed of the machine: a virtual machine may be several times slower on another day."""
NEED_ROOT = ("rounds", "preflight", "slurm")
DOCUMENT, SUMMARY = REPO / "benchmarks" / "README.md", REPO / "docs" / "performance.md"


def machine() -> str:
    """Return a sentence with the machine, its current speed, the versions and the date."""
    began = time.perf_counter()
    for _ in range(TURNS):
        pass
    took = time.perf_counter() - began
    host = facts()
    return (
        f"Measured on {time.strftime('%Y-%m-%d')}: {host['cpu']}, {host['cores']} cores,"
        f" {int(host['memory_bytes']) / 2**30:.0f} GiB, Python {platform.python_version()},"
        f" pytest {importlib.metadata.version('pytest')};"
        f" load average before {os.getloadavg()[0]:.1f}. An empty Python loop of {TURNS:,} turns took {took:.2f} s."
    )


def replace_between_markers(text: str, name: str, new: str) -> str:
    """Return a document with new text between the markers of one name."""
    marker, end = f"<!-- {name} -->\n", "<!-- end -->"
    before, _, after = text.partition(marker)
    if end not in after:
        raise SystemExit(f"expected the lines <!-- {name} --> and <!-- end -->")
    return f"{before}{marker}{new}\n{after[after.index(end) :]}"


def write(document: Path, name: str, text: str) -> None:
    """Write a text into a document, between the markers of its name."""
    document.write_text(replace_between_markers(document.read_text(), name, text))


def main() -> int:
    """Run the chosen benchmarks; without names, run all and write the documents."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"benchmarks to run: {', '.join(BENCHMARKS)} (default: all)"
    )
    chosen = parser.parse_args().names
    if unknown := [name for name in chosen if name not in BENCHMARKS]:
        parser.error(f"unknown benchmarks: {', '.join(unknown)}; expected some of {', '.join(BENCHMARKS)}")
    names = chosen or list(BENCHMARKS)
    if os.geteuid() and (hosts := [name for name in names if name in NEED_ROOT]):
        parser.error(f"{', '.join(hosts)}: must run as root to create hosts on this machine (docs/lab.md)")
    if not chosen:
        write(DOCUMENT, "machine", machine())
    goals: list[Goal] = []
    missed = []
    for name in names:
        section = BENCHMARKS[name]()
        print(f"{name}\n\n{section.text}\n", flush=True)
        if not chosen:
            write(DOCUMENT, name, section.text)
        goals += section.goals
        missed += [f"{name}: {goal.what}" for goal in section.goals if goal.missed]
    if not chosen:
        write(SUMMARY, "goals", summary(goals))
    for goal in missed:
        print(f"missed by more than its noise: {goal}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
