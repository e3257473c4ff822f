"""``make test``: all phases run once, two kinds of workers share the slow files, and the slowest are printed."""

from pathlib import Path

import pytest

from tests.__main__ import run_phases
from tests.phases import PHASES

FAILED = pytest.ExitCode.TESTS_FAILED
JUNIT = """<testsuites><testsuite>
<testcase classname="tests.lab.test_a" name="test_one" time="{}"/>
<testcase classname="tests.test_b" name="test_two" time="0.5"/>
</testsuite></testsuites>"""


class Runs:
    def __init__(self, *codes: int) -> None:
        self.codes = iter(codes)
        self.calls: list[tuple[str, ...]] = []

    def passed(self) -> bool:
        return run_phases(["tests"], self.run)

    def run(self, *arguments: str) -> int:
        *others, junit = arguments
        self.calls.append(tuple(others))
        Path(junit.removeprefix("--junitxml=")).write_text(JUNIT.format(len(self.calls)))
        return next(self.codes, 0)


def test_all_phases_run_and_a_phase_without_tests_passes(capsys: pytest.CaptureFixture[str]) -> None:
    runs = Runs(0, pytest.ExitCode.NO_TESTS_COLLECTED)
    assert runs.passed()
    assert runs.calls == [("tests", *phase) for phase in PHASES.values()]
    printed = capsys.readouterr().out.splitlines()
    for line in ("    6.0     3 tests/lab/test_a.py", "    3.0 tests/lab/test_a.py::test_one"):
        assert line in printed
    assert [line.partition(":")[0] for line in printed[-3:]] == list(PHASES)


@pytest.mark.parametrize("code", [FAILED, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.INTERRUPTED, -9])
def test_a_phase_that_fails_fails_all_and_the_other_phases_run(code: int) -> None:
    runs = Runs(code)
    assert not runs.passed()
    assert len(runs.calls) == len(PHASES)
