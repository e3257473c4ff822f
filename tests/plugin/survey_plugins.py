"""Write down the names that other plugins give to options, ini settings, fixtures and markers.

    python tests/plugin/survey_plugins.py pytest-ansible pytest11.testinfra > tests/plugin/other_plugins.json

Run it with a Python in which pytest and the plugins are installed, and pytest-flagperf is not. The arguments are entry
points of plugins that cannot be loaded together: one pytest is started without each of them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import redirect_stdout
from importlib.metadata import distribution, distributions, packages_distributions
from typing import Any

import pytest
from _pytest import fixtures
from _pytest.config import argparsing

OWN = ("_pytest", "pytest", "pluggy", "importlib", "runpy", "__main__")


class Survey:
    """Notes each name with the distribution of the module that adds it."""

    def __init__(self) -> None:
        plugins = {
            point.dist.name: point.dist.version
            for dist in distributions()
            for point in dist.entry_points
            if point.group == "pytest11" and point.dist is not None
        }
        self.found: dict[str, dict[str, Any]] = {
            name: {"version": version, "options": [], "ini": [], "fixtures": []} for name, version in plugins.items()
        }
        self.markers: set[str] = set()
        self._packages = packages_distributions()
        self._watch()

    def _watch(self) -> None:
        add_ini = argparsing.Parser.addini
        register = fixtures.FixtureManager._register_fixture
        survey = self

        def watched_option(add: Any) -> Any:
            def watched(group: Any, *names: str, **attributes: Any) -> None:
                survey.note(survey.adder(), "options", *names)
                add(group, *names, **attributes)

            return watched

        def watched_ini(parser: Any, name: str, *arguments: Any, **attributes: Any) -> None:
            survey.note(survey.adder(), "ini", name)
            add_ini(parser, name, *arguments, **attributes)

        def watched_fixture(manager: Any, *, name: str, func: Any, **attributes: Any) -> None:
            survey.note(func.__module__, "fixtures", name)
            register(manager, name=name, func=func, **attributes)

        fixtures.FixtureManager._register_fixture = watched_fixture  # type: ignore[method-assign,assignment]
        for method in ("addoption", "_addoption"):
            setattr(argparsing.OptionGroup, method, watched_option(getattr(argparsing.OptionGroup, method)))
        argparsing.Parser.addini = watched_ini  # type: ignore[method-assign,assignment]

    def adder(self) -> str:
        """The module of the nearest caller that is not pytest's or this one."""
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in OWN:
            frame = frame.f_back
        return str(frame.f_globals.get("__name__", ""))

    def note(self, module: str, kind: str, *names: str) -> None:
        """Keep names under every plugin that the module's package belongs to."""
        for name in self._packages.get(module.partition(".")[0], ()):
            if name in self.found:
                self.found[name][kind] += names

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Read the markers when all plugins are registered."""
        lines = session.config.getini("markers")
        self.markers |= {line.partition(":")[0].partition("(")[0].strip() for line in lines}


def main(apart: list[str]) -> None:
    """Print the names as JSON."""
    survey = Survey()
    for blocked in apart:
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
            arguments = ["--collect-only", "-p", f"no:{blocked}", f"--rootdir={folder}", folder]
            code = pytest.main(arguments, plugins=[survey])
        if code != pytest.ExitCode.NO_TESTS_COLLECTED:
            raise SystemExit(f"pytest ended with {code}")
    plugins = {
        name: {key: sorted(set(value)) if isinstance(value, list) else value for key, value in found.items()}
        for name, found in sorted(survey.found.items())
    }
    written = {
        "pytest": distribution("pytest").version,
        "apart": apart,
        "markers": sorted(survey.markers),
        "plugins": plugins,
    }
    print(json.dumps(written, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
