"""All tests, in three phases: python -m tests [what pytest takes]; ``make test`` calls it.

All phases run even if one fails. On a virtual machine the hypervisor may give the cores to other machines, and tests
miss deadlines. Tests that failed meanwhile run once more, one at a time; a test that fails twice has failed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from flagperf_driver.node.sampling.load import Cores
from pytest_flagperf.results.measured.busy import STOLEN

PHASES = (
    ("-m", "not slow", "-n", "auto"),
    ("-m", "slow and alone"),
    ("-m", "slow and not alone", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"),
)
AGAIN = ("--last-failed", "--last-failed-no-failures=none", "--maxfail=3")


Cpu = Callable[[], tuple[float, float]]
"""How long all cores have worked, and how long the hypervisor gave them to others."""


def run_phases(arguments: Sequence[str], pytest_run: Callable[..., int], cpu: Cpu) -> bool:
    """Whether all tests passed."""
    passed = [_passes(phase, arguments, pytest_run, cpu) for phase in PHASES]
    return all(passed)


def _passes(phase: Sequence[str], arguments: Sequence[str], pytest_run: Callable[..., int], cpu: Cpu) -> bool:
    before = cpu()
    code = pytest_run(*arguments, *phase)
    worked, stolen = (now - then for now, then in zip(cpu(), before, strict=True))
    share = stolen / max(worked + stolen, 1)
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
        sys.exit(not run_phases(sys.argv[1:] or ["tests"], _pytest, Cores().busy_and_stolen))
    except KeyboardInterrupt:
        sys.exit(130)
