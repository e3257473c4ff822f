"""The command ``flagperf`` in this process: its output, its errors and its exit code."""

import pytest

from pytest_flagperf.commands import main

Capture = pytest.CaptureFixture[str]


def flagperf(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def output_of(capsys: Capture, *arguments: object, code: int = 0) -> str:
    """Run a command; return its output. It must exit with this code and print no error."""
    got = flagperf(*arguments)
    out, err = capsys.readouterr()
    assert (got, err) == (code, ""), out + err
    return out


def errors_of(capsys: Capture, *arguments: object) -> list[str]:
    """Run a command that must fail and print nothing to stdout; return the lines that it prints to stderr."""
    assert flagperf(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert all(line.startswith("flagperf: ") for line in err.splitlines())
    return [line.removeprefix("flagperf: ") for line in err.splitlines()]
