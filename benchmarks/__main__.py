"""Measure the harness, compare with the goals, and write docs/performance.md.

    python -m benchmarks                      # all of them, and the document (make bench-harness)
    python -m benchmarks collect logs         # only these, printed

The exit code is 1 where a figure misses its goal by more than its noise.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping

from flagperf_driver.node.sampling.host import facts

from . import collect, logs, preflight, report, rounds, sampler, step, whole_run
from .section import REPO, Section

BENCHMARKS: Mapping[str, Callable[[], Section]] = {
    "whole_run": whole_run.measure,
    "rounds": rounds.measure,
    "preflight": preflight.measure,
    "sampler": sampler.measure,
    "step": step.measure,
    "collect": collect.measure,
    "logs": logs.measure,
    "report": report.measure,
}
TURNS = 5_000_000
"""Of a loop that shows how fast the machine was: a virtual machine may be several times slower on another day."""
NEED_ROOT = ("rounds", "preflight")
DOCUMENT = REPO / "docs" / "performance.md"


def machine() -> str:
    """The machine, its speed at the time, the versions and the day, in a sentence."""
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


def between_marks(text: str, name: str, new: str) -> str:
    """A document with the text between the marks of one name replaced."""
    mark, end = f"<!-- {name} -->\n", "<!-- end -->"
    before, _, after = text.partition(mark)
    if end not in after:
        raise SystemExit(f"{DOCUMENT}: expected the lines <!-- {name} --> and <!-- end -->")
    return f"{before}{mark}{new}\n{after[after.index(end) :]}"


def write(name: str, text: str) -> None:
    """Put a text into the document."""
    DOCUMENT.write_text(between_marks(DOCUMENT.read_text(), name, text))


def main() -> int:
    """Run the chosen benchmarks; without a choice, all, into the document."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)} (all)")
    chosen = parser.parse_args().names
    if unknown := [name for name in chosen if name not in BENCHMARKS]:
        parser.error(f"unknown benchmarks: {', '.join(unknown)}; expected some of {', '.join(BENCHMARKS)}")
    names = chosen or list(BENCHMARKS)
    if os.geteuid() and (hosts := [name for name in names if name in NEED_ROOT]):
        parser.error(f"{', '.join(hosts)}: run as root: they make hosts on this machine (docs/lab.md)")
    if not chosen:
        write("machine", machine())
    missed = []
    for name in names:
        section = BENCHMARKS[name]()
        print(f"{name}\n\n{section.text}\n", flush=True)
        if not chosen:
            write(name, section.text)
        missed += [f"{name}: {goal.what}" for goal in section.goals if goal.missed]
    for goal in missed:
        print(f"missed by more than its noise: {goal}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
