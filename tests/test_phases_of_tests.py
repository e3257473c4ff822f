"""``make test``: all phases run, and what fails twice, or on a machine of its own, has failed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.__main__ import AGAIN, PHASES, run_phases

FAILED = pytest.ExitCode.TESTS_FAILED


class Runs:
    """Pytest by hand: exit codes in their order, and what the hypervisor takes in each phase of 100 s."""

    def __init__(self, *codes: int, stolen: int = 0) -> None:
        self.codes = iter(codes)
        self.given: list[tuple[str, ...]] = []
        self.cpu: Iterator[tuple[float, float]] = ((100 * number, stolen * number) for number in range(100))

    def passed(self) -> bool:
        return run_phases(["tests"], self.run, self.cpu.__next__)

    def run(self, *arguments: str) -> int:
        self.given.append(arguments)
        return next(self.codes, 0)


def test_all_phases_run_and_one_that_has_no_test_passes() -> None:
    runs = Runs(0, pytest.ExitCode.NO_TESTS_COLLECTED)
    assert runs.passed()
    assert runs.given == [("tests", *phase) for phase in PHASES]


@pytest.mark.parametrize("code", [FAILED, pytest.ExitCode.INTERNAL_ERROR, -9])
def test_on_a_machine_of_its_own_a_failure_is_one_and_the_other_phases_run(code: int) -> None:
    runs = Runs(code, stolen=5)  # of 105
    assert not runs.passed()
    assert len(runs.given) == 3


# Without a test that failed, the first run failed for something else, as what it left behind.
@pytest.mark.parametrize(
    ("second", "passed"), [(0, True), (FAILED, False), (pytest.ExitCode.NO_TESTS_COLLECTED, False)]
)
def test_where_cores_are_taken_away_what_failed_runs_once_more(second: int, passed: bool) -> None:
    runs = Runs(0, FAILED, second, stolen=6)
    assert runs.passed() is passed
    assert runs.given[2] == ("tests", "-m", "slow and alone", *AGAIN)
    assert len(runs.given) == 4


def test_a_run_that_broke_off_has_failed_however_busy_the_machine() -> None:
    runs = Runs(pytest.ExitCode.INTERRUPTED, stolen=90)
    assert not runs.passed()
    assert len(runs.given) == 3
