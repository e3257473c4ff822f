"""The run of a pytest session: open, start, finish and close it."""

from __future__ import annotations

import argparse
import atexit
import gc
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_flagperf.progress import note, subscribed
from pytest_flagperf.stored.layout import JUNIT, PAGE

from . import exit_code
from .interrupts import Interrupts
from .items import requested_cases
from .pytest_html import PageHooks, clean_metadata, expanded, pages, write_pages
from .reports import Attachments, JUnitFile
from .shared import RUN, SESSION, is_worker, line_writer
from .shown_command import shown_command
from .terminal import ReportLines
from .writers import Writers, guard

if TYPE_CHECKING:
    from pytest_flagperf.running.run import Run
    from pytest_flagperf.selection import Absent, Selected


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Open the run if there are suites."""
    from pytest_flagperf.problems import Problems
    from pytest_flagperf.settings import tree_root

    bundled = _use_bundled_suites(config)
    try:
        root = tree_root(config.rootpath, command_line(config)) or (config.rootpath if bundled else None)
        if root is None:
            return
        # Objects that exist now are not searched for reference cycles: loading modules would search them many times,
        # and pytest twice at its end. Its own cleanup comes before this one.
        gc.freeze()
        config.add_cleanup(gc.unfreeze)
        from pytest_flagperf.kind import markers
        from pytest_flagperf.running.run import Run

        path = getattr(config, "workerinput", {}).get("flagperf_directory")  # of the controller of a parallel run
        run = Run.open(
            root,
            config.invocation_params.dir,
            command_line(config),
            Path(path) if path else None,
            bundled_suites=bundled,
        )
        for name, meaning in markers().items():
            config.addinivalue_line("markers", f"{name}: {meaning}")
    except Problems as problems:
        raise pytest.UsageError(str(problems)) from problems
    if run is None:
        return
    config.stash[RUN] = run
    atexit.register(gc.freeze)  # Python's exit is 0.1 s faster if it does not search all modules for reference cycles
    _set_log_level(config, run.log_level.lower())
    config.pluginmanager.register(Interrupts(config, worker=is_worker(config)), "flagperf-interrupts")
    config.pluginmanager.register(PageHooks(run), "flagperf-page")
    clean_metadata(config)
    config.pluginmanager.register(Attachments(config), "flagperf-attachments")
    config.pluginmanager.register(JUnitFile(config), "flagperf-junit")
    config.pluginmanager.register(ReportLines(config), "flagperf-report-lines")
    if not is_worker(config):
        config.pluginmanager.register(Writers(run), "flagperf-writers")
        config.pluginmanager.register(exit_code, "flagperf-exit-code")
    if run.settings.starts_nothing and hasattr(config.option, "dist"):
        # Nothing runs in parallel, and workers have no terminal for the output.
        config.option.dist, config.option.tx = "no", []


_VERBOSITY = {"debug": 1, "info": 0, "warning": -1, "error": -1}


def _set_log_level(config: pytest.Config, level: str) -> None:
    """Apply the log level of FlagPerf's test_conf.py, unless pytest's own options are set."""
    if level and config.option.verbose == 0:
        config.option.verbose = _VERBOSITY[level]
    if level and config.getoption("log_level", None) is None:
        config.option.log_level = level.upper()


def _use_bundled_suites(config: pytest.Config) -> bool:
    """Replace arguments such as ``suites/<model>`` by bundled suites if no such path exists; return True if any was."""
    folder, is_bundled = config.invocation_params.dir, False
    config.args = [*config.args]  # config.option keeps what was written, for the stored command
    for number, argument in enumerate(config.args):
        # Must be cheap, because every pytest run comes here.
        if not argument.startswith(("suites", "./suites")):
            continue
        from pytest_flagperf.catalog import bundled_argument

        if path := bundled_argument(argument, folder):
            config.args[number], is_bundled = path, True
    if is_bundled:
        sys.dont_write_bytecode = True  # otherwise pytest writes bytecode of the tests into the installed package
    return is_bundled


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the results when the last worker has ended.

    Not last: pytest then removes the temporary folders of earlier sessions, which may take minutes.
    """
    run = session.config.stash.get(RUN, None)
    if run is None:
        return
    if is_worker(session.config):
        run.end_progress(int(exitstatus))  # now: pytest-xdist interrupts a worker that needs 5 s to unconfigure
        return
    from pytest_flagperf.running.finish import finish

    had_workers = session.config.pluginmanager.has_plugin("dsession")
    command = shown_command(session.config.option, run.settings)
    note("activity", text="writing the reports")
    try:
        finish(run, command, int(exitstatus), had_workers=had_workers)
        write_pages(run, session.config)
    finally:
        note("phase_end")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Copy the JUnit file into the run directory, and remove the directory of a run without results."""
    run = config.stash.get(RUN, None)
    if run is None:
        return
    from pytest_flagperf.stored import WriteError

    run.engine.close()
    if not is_worker(config):
        run.end_progress(int(config.stash[SESSION].exitstatus) if SESSION in config.stash else None)
        try:
            run.close(expanded(config.getoption("xmlpath", None)))
        except WriteError as error:
            sys.stderr.write(f"flagperf: {error}\n")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Start the run; with --plan or --preflight, print the plans or the findings instead of running tests."""
    run = session.config.stash.get(RUN, None)
    if run is None or not runs_tests(session):
        return None
    if is_worker(session.config):
        if requested := requested_cases(session.items):
            run.requested = tuple(requested)
            run.start_progress(session.config.workerinput["workerid"])  # type: ignore[attr-defined]
        return None
    if not session.config.pluginmanager.has_plugin("dsession"):  # the workers of pytest-xdist collect
        begin(session, requested_cases(session.items))
    if run.settings.starts_nothing:
        _preview(session, run)
        return True
    return None


def _preview(session: pytest.Session, run: Run) -> None:
    """Print the plans or the findings on the hosts, as --plan and --preflight request."""
    from pytest_flagperf.engines import is_local
    from pytest_flagperf.plan import all_additions, too_large
    from pytest_flagperf.report.terminal.table import aligned
    from pytest_flagperf.results.figures.units import count
    from pytest_flagperf.running.header import cannot_run
    from pytest_flagperf.selection import runnable

    write = line_writer(session.config)
    chosen = runnable(run.requested)
    if run.settings.plan:
        plans = [*map(run.plan, chosen)]
        if chosen:
            rows, total = run.overview(chosen)
            for line in aligned(rows, left=len(rows[0])):
                write(line)
            if len(chosen) > 1:
                write(f"flagperf: {total}")
        if session.config.get_verbosity() > 0:
            for selected in chosen:
                write(run.describe(selected))
        elif chosen:
            if additions := all_additions(plans):
                write(f"flagperf: the vendor adds {additions}")
            write("flagperf: -v adds each config value with its file, the hosts, and the command of each rank")
            for line in too_large(plans):
                write(f"flagperf: {line}")
        for line in run.engine.prepare(plans) if is_local(run.engine) else ():
            write(f"flagperf: {line}")
        if session.config.get_verbosity() < 0:  # otherwise the header lists them
            for line in (*cannot_run(run.requested), *(f"note: {note}" for note in run.notes)):
                write(line)
        if not chosen:
            session.testscollected = 0  # pytest then reports that no tests were collected, as for a run
    if run.settings.preflight == "check":
        from pytest_flagperf.engines.agents.preflight import lines

        with subscribed(*run.output):  # the line of the minute while large data are checked
            findings = run.preflight(chosen)
        for line in lines(findings):
            write(line)
        session.testsfailed += sum(finding.fatal for finding in findings)
    if number := run.without_data(chosen):
        missing = "pass --data-dir=DIR, --case CASE=DIR or --synthetic"
        write(f"flagperf: no training data for {count(number, 'case')}: {missing}")


def _load(run: Run) -> None:
    """Import what the rounds and their reports need."""
    import psutil  # noqa: F401 - for the figures of the controller

    from pytest_flagperf.report.export import junit  # noqa: F401
    from pytest_flagperf.report.terminal import summary  # noqa: F401

    _ = run.rounds, run.scaling, pages()


def runs_tests(session: pytest.Session) -> bool:
    """Return False if pytest only collects or shows the setup of the tests, or if the collection failed."""
    option = session.config.option
    has_failed = session.testsfailed and not option.continue_on_collection_errors
    return not (has_failed or option.collectonly or getattr(option, "setuponly", False))


def begin(session: pytest.Session, requested: Sequence[Selected | Absent]) -> None:
    """Check all selected cases before the first one starts, then enable the reports that the user did not configure."""
    from pytest_flagperf.problems import Problems
    from pytest_flagperf.selection import runnable
    from pytest_flagperf.stored import WriteError, layout

    config = session.config
    run = config.stash[RUN]
    run.requested = tuple(requested)
    chosen = runnable(requested)
    try:
        run.check(chosen)
        write = line_writer(config)
        for line in run.chosen_runtimes():
            write(f"flagperf: {line}")
        if not chosen or run.settings.starts_nothing:
            return
        run.directory.reserve()
        run.start_progress(layout.CONTROLLER, chosen)
        gc.freeze()  # the modules are loaded
        with ThreadPoolExecutor(1) as thread:  # while the hosts answer
            thread.submit(_load, run)
            lines = run.prepare(chosen)
        if run.settings.preflight:
            from pytest_flagperf.running.machine_check import check_machine

            lines += check_machine(run, chosen)
        for line in [*lines, *run.begin(chosen)]:
            write(f"flagperf: {line}")
    except (Problems, WriteError) as problems:
        raise pytest.UsageError(str(problems)) from problems
    option = config.option
    if not config.getoption("htmlpath", None) and config.pluginmanager.has_plugin("metadata"):
        option.htmlpath, option.self_contained_html = str(run.directory.path / PAGE), True
        _configure_again(session, "html")
    if not config.getoption("xmlpath", None):
        option.xmlpath = str(run.directory.path / JUNIT)
        _configure_again(session, "junitxml")
    _name_suite(config, run.directory.path.name)
    guard(session, run)


def _name_suite(config: pytest.Config, name: str) -> None:
    """Name the suite of the JUnit file after the run, unless junit_suite_name sets another name."""
    from _pytest.junitxml import xml_key

    xml = config.stash.get(xml_key, None)
    if xml is not None and xml.suite_name == "pytest":
        xml.suite_name = name


def _configure_again(session: pytest.Session, name: str) -> None:
    """Configure a plugin again after an option was changed, and call the session hooks it missed."""
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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options in their groups; settings/options.py defines them."""
    from pytest_flagperf.settings import COMMAND_LINE_OPTIONS, GROUPS

    groups = {title: parser.getgroup(title) for title in GROUPS}
    for option in COMMAND_LINE_OPTIONS:
        keywords: dict[str, Any] = {"dest": f"flagperf_{option.key}", "help": option.help}
        if option.alone:
            for value in option.choices:
                name = f"--{option.name}" if value == option.alone else f"--{option.name}={value}"
                shown = {"help": option.help if value == option.alone else "see above"}
                groups[option.group].addoption(name, **{**keywords, **shown}, action="store_const", const=value)
            continue
        if option.flag:
            keywords |= {"action": argparse.BooleanOptionalAction, "default": None}
        else:
            keywords |= {"action": "append" if option.many else "store", "metavar": option.metavar, "default": None}
            keywords |= {"type": type(option.default)} if isinstance(option.default, (int, float)) else {}
            keywords |= {"choices": option.choices, "metavar": None} if option.choices else {}
        groups[option.group].addoption(f"--{option.name}", **keywords)


@pytest.hookimpl(trylast=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Report unknown options and paths with a suggestion; trylast, so that the options of conftest.py are known."""
    from pytest_flagperf.problems import Problems
    from pytest_flagperf.settings import check_paths, check_unknown

    known, unknown = parser.parse_known_and_unknown_args(args)
    try:
        check_unknown(unknown, early_config.rootpath)
        check_paths(() if known.pyargs else known.file_or_dir, early_config.invocation_params.dir)
    except Problems as problems:
        raise pytest.UsageError(str(problems)) from problems


def command_line(config: pytest.Config) -> dict[str, Any]:
    """Return the values of pytest-flagperf's options by key; None if an option was not passed."""
    prefix = "flagperf_"
    return {name.removeprefix(prefix): value for name, value in vars(config.option).items() if name.startswith(prefix)}
