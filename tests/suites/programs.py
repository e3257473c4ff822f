"""Run the programs of this folder in the environments of the suites; the tests of a module share their results."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.catalog import Suite
from tests.suites.children import MARK

REPO = Path(__file__).resolve().parents[2]


class Results:
    """What a program prints, by suite; a test waits only for its own suite."""

    def __init__(self, coming: Iterator[tuple[Path, Any]], errors: list[str], count: int) -> None:
        self._coming, self._errors, self._count, self._results = coming, errors, count, dict[Path, Any]()

    def __getitem__(self, suite: Path) -> Any:
        result = self.get(suite)
        assert result is not None, self.errors
        return result

    def get(self, suite: Path) -> Any:
        """Return the suite's result, None after an error."""
        while suite not in self._results:
            coming = next(self._coming, None)
            assert coming is not None, f"no result of {suite}\n{''.join(self._errors)}"
            self._results[coming[0]] = coming[1]
        if len(self._results) == self._count:
            self._results.update(self._coming)  # none is left: the last program ends, and its exit code is checked
        return self._results[suite]

    @property
    def errors(self) -> str:
        """What the program printed to stderr until its end."""
        self._results.update(self._coming)
        return "".join(self._errors)


def run(python: Callable[[Path], str], arguments: Mapping[Path, Sequence[Any]], program: str, *options: str) -> Results:
    """Run a program once for all suites that share an environment, with further arguments for each suite."""
    errors: list[str] = []
    return Results(_results(python, arguments, [program, *options], errors), errors, len(arguments))


def _results(
    python: Callable[[Path], str], arguments: Mapping[Path, Sequence[Any]], program: Sequence[str], errors: list[str]
) -> Iterator[tuple[Path, Any]]:
    for interpreter in dict.fromkeys(map(python, arguments)):
        tasks = {str(suite): given for suite, given in arguments.items() if python(suite) == interpreter}
        argv = [interpreter, "-B", "-m", f"tests.suites.{program[0]}", *program[1:], json.dumps(tasks)]
        with tempfile.TemporaryFile("w+", encoding="utf-8") as stderr:
            with subprocess.Popen(argv, cwd=REPO, stdout=subprocess.PIPE, stderr=stderr, text=True) as process:
                assert process.stdout is not None
                try:
                    for line in process.stdout:
                        if line.startswith(MARK):
                            suite, result = json.loads(line.removeprefix(MARK))
                            yield Path(suite), result
                except GeneratorExit:
                    process.terminate()  # nobody needs the other results
                    raise
            stderr.seek(0)
            errors.append(stderr.read())
        assert process.returncode == 0, errors[-1]


def selected(request: pytest.FixtureRequest, *names: str) -> list[tuple[Any, ...]]:
    """Return the values of these parameters in the selected tests of this module that have them."""
    functions = [
        item
        for item in request.session.items
        if isinstance(item, pytest.Function) and not item.get_closest_marker("skip")
    ]
    calls = [item.callspec.params for item in functions if item.module is request.module and hasattr(item, "callspec")]
    values = [tuple(params[name] for name in names) for params in calls if params.keys() >= set(names)]
    return list(dict.fromkeys(values))


def first_of_homes(suites: Sequence[Suite], *, each_framework: bool = False) -> list[Suite]:
    """Return the first suite of each set of shared code, or the first in each framework."""
    keys = ((suite.common, suite.framework if each_framework else "") for suite in reversed(suites))
    return list(dict(zip(keys, reversed(suites), strict=True)).values())
