"""Run the programs of this folder in the environments of the suites; the tests of a module share their results."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.catalog import Suite

REPO = Path(__file__).resolve().parents[2]


@dataclass
class Results:
    """What a program printed."""

    by_suite: dict[Path, Any] = field(default_factory=dict)
    errors: str = ""

    def __getitem__(self, suite: Path) -> Any:
        assert self.by_suite[suite] is not None, self.errors
        return self.by_suite[suite]


def run(python: Callable[[Path], str], arguments: Mapping[Path, Sequence[Any]], program: str, *options: str) -> Results:
    """Run a program once for all suites that share an environment, with further arguments for each suite."""
    results = Results()
    for interpreter in dict.fromkeys(map(python, arguments)):
        tasks = {str(suite): given for suite, given in arguments.items() if python(suite) == interpreter}
        argv = [interpreter, "-B", "-m", f"tests.suites.{program}", *options, json.dumps(tasks)]
        done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        printed = json.loads(done.stdout.splitlines()[-1])
        results.by_suite.update({Path(suite): result for suite, result in printed.items()})
        results.errors += done.stderr
    return results


def selected(request: pytest.FixtureRequest, *names: str) -> list[tuple[Any, ...]]:
    """Return the values of these parameters in the selected tests of this module that have them."""
    functions = [item for item in request.session.items if isinstance(item, pytest.Function)]
    calls = [item.callspec.params for item in functions if item.module is request.module and hasattr(item, "callspec")]
    values = [tuple(params[name] for name in names) for params in calls if params.keys() >= set(names)]
    return list(dict.fromkeys(values))


def first_of_homes(suites: Sequence[Suite], *, each_framework: bool = False) -> list[Suite]:
    """Return the first suite of each set of shared code, or the first in each framework."""
    keys = ((suite.common, suite.framework if each_framework else "") for suite in reversed(suites))
    return list(dict(zip(keys, reversed(suites), strict=True)).values())
