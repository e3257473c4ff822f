"""``make test``: all phases run; a failure counts if it happens twice, or if no CPU time was stolen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.__main__ import AGAIN, PHASES, run_phases

FAILED = pytest.ExitCode.TESTS_FAILED


class Runs:
    """A fake pytest with exit codes, and the CPU time that the hypervisor steals in each phase of 100 s."""

    def __init__(self, *codes: int, stolen: int = 0) -> None:
        self.codes = iter(codes)
        self.calls: list[tuple[str, ...]] = []
        self.cpu: Iterator[tuple[float, float]] = ((100 * number, stolen * number) for number in range(100))

    def passed(self) -> bool:
        return run_phases(["tests"], self.run, self.cpu.__next__)

    def run(self, *arguments: str) -> int:
        self.calls.append(arguments)
        return next(self.codes, 0)


def test_all_phases_run_and_a_phase_without_tests_passes() -> None:
    runs = Runs(0, pytest.ExitCode.NO_TESTS_COLLECTED)
    assert runs.passed()
    assert runs.calls == [("tests", *phase) for phase in PHASES]


@pytest.mark.parametrize("code", [FAILED, pytest.ExitCode.INTERNAL_ERROR, -9])
def test_without_stolen_time_a_failure_counts_and_the_other_phases_run(code: int) -> None:
    runs = Runs(code, stolen=5)  # of 105
    assert not runs.passed()
    assert len(runs.calls) == 3


# If no test failed again, the first run failed for another reason, such as leftover processes.
@pytest.mark.parametrize(
    ("second", "passed"), [(0, True), (FAILED, False), (pytest.ExitCode.NO_TESTS_COLLECTED, False)]
)
def test_with_stolen_time_failed_tests_run_again(second: int, passed: bool) -> None:
    runs = Runs(0, FAILED, second, stolen=6)
    assert runs.passed() is passed
    assert runs.calls[2] == ("tests", "-m", "slow and alone", *AGAIN)
    assert len(runs.calls) == 4


def test_an_interrupted_run_always_fails() -> None:
    runs = Runs(pytest.ExitCode.INTERRUPTED, stolen=90)
    assert not runs.passed()
    assert len(runs.calls) == 3
