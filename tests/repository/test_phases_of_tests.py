"""``make test``: all phases run once, and each prints its slowest tests."""

import pytest

from tests.__main__ import SLOWEST, run_phases
from tests.phases import PHASES

FAILED = pytest.ExitCode.TESTS_FAILED


class Runs:
    def __init__(self, *codes: int) -> None:
        self.codes = iter(codes)
        self.calls: list[tuple[str, ...]] = []

    def passed(self) -> bool:
        return run_phases(["tests"], self.run)

    def run(self, *arguments: str) -> int:
        self.calls.append(arguments)
        return next(self.codes, 0)


def test_all_phases_run_and_a_phase_without_tests_passes(capsys: pytest.CaptureFixture[str]) -> None:
    runs = Runs(0, pytest.ExitCode.NO_TESTS_COLLECTED)
    assert runs.passed()
    assert runs.calls == [("tests", *phase, SLOWEST) for phase in PHASES.values()]
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == list(PHASES)


@pytest.mark.parametrize("code", [FAILED, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.INTERRUPTED, -9])
def test_a_phase_that_fails_fails_all_and_the_other_phases_run(code: int) -> None:
    runs = Runs(code)
    assert not runs.passed()
    assert len(runs.calls) == len(PHASES)
