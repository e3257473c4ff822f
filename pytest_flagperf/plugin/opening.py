"""The options, and the run that they open, begin and close."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .failures import Attachments
from .interrupts import Interrupts
from .keys import RUN
from .page import Page, clean_metadata, expanded
from .screen import line_writer
from .writers import Writers, guard

if TYPE_CHECKING:
    from pytest_flagperf.selection import Selected


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the command line in their groups; their table is in settings.py."""
    from pytest_flagperf.settings import COMMAND_LINE_OPTIONS, GROUPS

    groups = {title: parser.getgroup(title) for title in GROUPS}
    for option in COMMAND_LINE_OPTIONS:
        keywords: dict[str, Any] = {"dest": f"flagperf_{option.key}", "help": option.help}
        if option.flag:
            keywords |= {"action": argparse.BooleanOptionalAction, "default": None}
        else:
            keywords |= {"action": "append" if option.many else "store", "metavar": option.metavar, "default": None}
            keywords |= {"type": type(option.default)} if isinstance(option.default, (int, float)) else {}
            keywords |= {"choices": option.choices, "metavar": None} if option.choices else {}
        groups[option.group].addoption(f"--{option.name}", **keywords)


@pytest.hookimpl(trylast=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Say what to use instead of an unknown option of ours; trylast, so that the options of conftest.py are known."""
    from pytest_flagperf.problems import Problems
    from pytest_flagperf.settings import check_unknown

    _, unknown = parser.parse_known_and_unknown_args(args)
    try:
        check_unknown(unknown, args, early_config.rootpath)
    except Problems as problems:
        raise pytest.UsageError(str(problems)) from problems


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Open the run where there are suites."""
    from pytest_flagperf.problems import Problems
    from pytest_flagperf.settings import QUESTIONS, tree_root

    for name, meaning in QUESTIONS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")

    bundled = _use_bundled_suites(config)
    try:
        root = tree_root(config.rootpath, _command_line(config)) or (config.rootpath if bundled else None)
        if root is None:
            return
        from pytest_flagperf.running.run import Run

        run = Run.open(
            root,
            config.invocation_params.dir,
            _command_line(config),
            _given_directory(config),
            bundled_suites=bundled,
        )
    except Problems as problems:
        raise pytest.UsageError(str(problems)) from problems
    if run is None:
        return
    config.stash[RUN] = run
    _set_log_level(config, run.log_level.lower())
    config.pluginmanager.register(Interrupts(config, worker=is_worker(config)), "flagperf-interrupts")
    config.pluginmanager.register(Page(run), "flagperf-page")
    clean_metadata(config)
    config.pluginmanager.register(Attachments(config), "flagperf-attachments")
    if not is_worker(config):
        config.pluginmanager.register(Writers(run), "flagperf-writers")
    if (run.settings.plan or run.settings.preflight) and hasattr(config.option, "dist"):
        # There is nothing to do in parallel, and workers have no terminal to print on.
        config.option.dist, config.option.tx = "no", []


_VERBOSITY = {"debug": 1, "info": 0, "warning": -1, "error": -1}


def _set_log_level(config: pytest.Config, level: str) -> None:
    """Show as much as the original's file asks for, where pytest's own options ask for nothing."""
    if level and config.option.verbose == 0:
        config.option.verbose = _VERBOSITY[level]
    if level and config.getoption("log_level", None) is None:
        config.option.log_level = level.upper()


def _use_bundled_suites(config: pytest.Config) -> bool:
    """Let arguments such as ``suites/<model>`` name the wheel's suites if no such path exists; whether one does."""
    folder, found = config.invocation_params.dir, False
    for number, argument in enumerate(config.args):
        # Cheap, for every pytest run anywhere asks: only an argument that names suites is looked at.
        if not argument.startswith(("suites", "./suites")):
            continue
        from pytest_flagperf.catalog import bundled_argument

        if path := bundled_argument(argument, folder):
            config.args[number], found = path, True
    if found:
        sys.dont_write_bytecode = True  # pytest would write what it makes of the tests into the installed package
    return found


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave JUnit's file in the run directory, and no directory of a run that never was."""
    run = config.stash.get(RUN, None)
    if run is None:
        return
    from pytest_flagperf.stored import WriteError

    run.engine.close()
    if not is_worker(config):
        try:
            run.close(expanded(config.getoption("xmlpath", None)))
        except WriteError as error:
            sys.stderr.write(f"flagperf: {error}\n")


def _command_line(config: pytest.Config) -> dict[str, Any]:
    prefix = "flagperf_"
    return {name.removeprefix(prefix): value for name, value in vars(config.option).items() if name.startswith(prefix)}


def _given_directory(config: pytest.Config) -> Path | None:
    """The run directory that the controller of a parallel run made."""
    given = getattr(config, "workerinput", {}).get("flagperf_directory")
    return Path(given) if given else None


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def begin(session: pytest.Session, chosen: Sequence[Selected]) -> None:
    """Check all cases before the first one starts, then switch on the reports that nobody has to ask for."""
    from pytest_flagperf.problems import Problems
    from pytest_flagperf.stored import WriteError

    config = session.config
    run = config.stash[RUN]
    try:
        run.plans.check(chosen)
        if not chosen or run.settings.plan or run.settings.preflight:
            return
        told = run.plans.prepare(chosen)
        run.directory.reserve()
        write = line_writer(config)
        for line in [*told, *run.begin(chosen)]:
            write(f"flagperf: {line}")
    except (Problems, WriteError) as problems:
        raise pytest.UsageError(str(problems)) from problems
    option = config.option
    if not config.getoption("htmlpath", None) and config.pluginmanager.has_plugin("metadata"):
        option.htmlpath, option.self_contained_html = str(run.directory.path / "report.html"), True
        _configure_again(session, "html")
    if not config.getoption("xmlpath", None):
        option.xmlpath = str(run.directory.path / "junit.xml")
        _configure_again(session, "junitxml")
    guard(session, run)


def _configure_again(session: pytest.Session, name: str) -> None:
    """Let a plugin see an option that was set after its own configuration, and catch up with the session."""
    manager = session.config.pluginmanager
    plugin = manager.get_plugin(name)
    if plugin is None:
        return
    before = manager.get_plugins()
    plugin.pytest_configure(config=session.config)
    for reporter in manager.get_plugins() - before:
        reporter.pytest_sessionstart(**({"session": session} if name == "html" else {}))
        if hasattr(reporter, "pytest_collection_finish"):
            reporter.pytest_collection_finish(session=session)
