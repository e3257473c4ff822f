"""All tests, in the phases of phases.py: python -m tests [what pytest takes]; ``make test`` calls it.

All phases run even if one fails, and no test runs twice.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import pytest

from tests.phases import PHASES

SLOWEST = "--durations=25"


def run_phases(arguments: Sequence[str], pytest_run: Callable[..., int]) -> bool:
    """Run all phases and print how long each took; return whether all tests passed."""
    codes, spent = [], []
    for name, phase in PHASES.items():
        started = time.monotonic()
        codes.append(pytest_run(*arguments, *phase, SLOWEST))
        spent.append(f"{name}: {time.monotonic() - started:.0f} s")
    print(*spent, sep="\n", flush=True)
    # The arguments may name files that have no test of a phase.
    return all(code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) for code in codes)


def _pytest(*arguments: str) -> int:
    print("pytest", *arguments, flush=True)
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(not run_phases(sys.argv[1:], _pytest))
    except KeyboardInterrupt:
        sys.exit(130)
