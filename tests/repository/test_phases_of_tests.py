"""``make test``: all phases run once, and each prints its slowest tests."""

import pytest

from tests.__main__ import SLOWEST, run_phases
from tests.phases import PHASES


@pytest.mark.parametrize(
    ("code", "passed"),
    [(0, True), (pytest.ExitCode.NO_TESTS_COLLECTED, True), (pytest.ExitCode.TESTS_FAILED, False), (-9, False)],
)
def test_all_phases_run_and_one_that_fails_fails_all(
    code: int, passed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    codes, calls = iter([code]), []

    def run(*arguments: str) -> int:
        calls.append(arguments)
        return next(codes, 0)

    assert run_phases(["tests"], run) is passed
    assert calls == [("tests", *phase, SLOWEST) for phase in PHASES.values()]
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == list(PHASES)
