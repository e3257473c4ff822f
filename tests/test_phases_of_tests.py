"""``make test``: all phases run; a failure counts if it happens twice."""

from __future__ import annotations

import pytest

from tests.__main__ import AGAIN, PHASES, run_phases

FAILED = pytest.ExitCode.TESTS_FAILED


class Runs:
    """A fake pytest with exit codes."""

    def __init__(self, *codes: int) -> None:
        self.codes = iter(codes)
        self.calls: list[tuple[str, ...]] = []

    def passed(self) -> bool:
        return run_phases(["tests"], self.run)

    def run(self, *arguments: str) -> int:
        self.calls.append(arguments)
        return next(self.codes, 0)


def test_all_phases_run_and_a_phase_without_tests_passes() -> None:
    runs = Runs(0, pytest.ExitCode.NO_TESTS_COLLECTED)
    assert runs.passed()
    assert runs.calls == [("tests", *phase) for phase in PHASES]


@pytest.mark.parametrize("code", [pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.INTERRUPTED, -9])
def test_what_is_not_a_failed_test_fails_at_once_and_the_other_phases_run(code: int) -> None:
    runs = Runs(code)
    assert not runs.passed()
    assert len(runs.calls) == 3


# If no test failed again, the first run failed for another reason, such as leftover processes.
@pytest.mark.parametrize(
    ("second", "passed"), [(0, True), (FAILED, False), (pytest.ExitCode.NO_TESTS_COLLECTED, False)]
)
def test_failed_tests_run_again(second: int, passed: bool) -> None:
    runs = Runs(0, FAILED, second)
    assert runs.passed() is passed
    assert runs.calls[2] == ("tests", "-m", "slow and alone", *AGAIN)
    assert len(runs.calls) == 4
