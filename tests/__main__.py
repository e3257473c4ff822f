"""All tests, in three phases: python -m tests [what pytest takes]; ``make test`` calls it.

All phases run even if one fails. On a virtual machine the hypervisor may give the cores to other machines, and tests
miss deadlines. Tests that failed meanwhile run once more, one at a time; a test that fails twice has failed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

PHASES = (
    ("-m", "not slow", "-n", "auto"),
    ("-m", "slow and alone"),
    ("-m", "slow and not alone", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"),
)
STOLEN = 0.05
"""From this share on the machine is disturbed; a round is marked as busy from the same share on."""
AGAIN = ("--last-failed", "--last-failed-no-failures=none", "--maxfail=3")


class Ticks(NamedTuple):
    """Of all cores since the machine's start."""

    worked: int
    stolen: int


def read_ticks() -> Ticks:
    with open("/proc/stat", encoding="ascii") as stat:  # noqa: PTH123
        user, nice, system, _, _, irq, softirq, stolen = map(int, stat.readline().split()[1:9])
    return Ticks(user + nice + system + irq + softirq, stolen)


def run_phases(
    arguments: Sequence[str], pytest_run: Callable[..., int], ticks: Callable[[], Ticks] = read_ticks
) -> bool:
    """Whether all tests passed."""
    passed = [_passes(phase, arguments, pytest_run, ticks) for phase in PHASES]
    return all(passed)


def _passes(
    phase: Sequence[str], arguments: Sequence[str], pytest_run: Callable[..., int], ticks: Callable[[], Ticks]
) -> bool:
    before = ticks()
    code = pytest_run(*arguments, *phase)
    after = ticks()
    stolen, worked = after.stolen - before.stolen, after.worked - before.worked
    share = stolen / max(stolen + worked, 1)
    if code == pytest.ExitCode.TESTS_FAILED and share >= STOLEN:
        print(f"the hypervisor took {share:.0%} of the cores' time: what failed runs once more, alone", flush=True)
        return pytest_run(*arguments, *phase[:2], *AGAIN) == pytest.ExitCode.OK
    # The arguments may name files that have no test of a phase.
    return code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def _pytest(*arguments: str) -> int:
    print("pytest", *arguments, flush=True)
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(not run_phases(sys.argv[1:] or ["tests"], _pytest))
    except KeyboardInterrupt:
        sys.exit(130)
