"""All tests, in three phases: python -m tests [what pytest takes]; ``make test`` calls it.

All phases run even if one fails. Tests miss deadlines on a machine whose cores others use too, as a hypervisor's other
machines do. So the tests that failed in a phase run once more, one at a time; a test that fails twice has failed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

PHASES = (
    ("-m", "not slow", "-n", "auto"),
    ("-m", "slow and alone"),
    ("-m", "slow and not alone", "-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"),
)
AGAIN = ("--last-failed", "--last-failed-no-failures=none", "--maxfail=3")


def run_phases(arguments: Sequence[str], pytest_run: Callable[..., int]) -> bool:
    """Whether all tests passed."""
    passed = [_passes(phase, arguments, pytest_run) for phase in PHASES]
    return all(passed)


def _passes(phase: Sequence[str], arguments: Sequence[str], pytest_run: Callable[..., int]) -> bool:
    code = pytest_run(*arguments, *phase)
    if code == pytest.ExitCode.TESTS_FAILED:
        print("what failed runs once more, one test at a time", flush=True)
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
