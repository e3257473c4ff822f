"""The plugin: translates between pytest and the rest; no logic of its own."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import pytest

if TYPE_CHECKING:
    from pytest_flagperf.case import Case
    from pytest_flagperf.cluster import Host
    from pytest_flagperf.plan import Plan
    from pytest_flagperf.results.outcome import Outcome
    from pytest_flagperf.results.verdicts import Verdict
    from pytest_flagperf.run import Run, Scaling
    from pytest_flagperf.runtime import Interpreter
    from pytest_flagperf.selection import Selected

T = TypeVar("T")
RUN = pytest.StashKey["Run"]()
SESSION = pytest.StashKey[pytest.Session]()
# Set when it is known what will run: whether any of it takes a case.
BEGUN = pytest.StashKey[bool]()
VERDICTS = pytest.StashKey["list[Verdict]"]()
OUTCOMES = pytest.StashKey["list[Outcome]"]()
NO_CASE = pytest.param(None, id="no-case")


# -- options and the run ----------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add one group; its table is in settings.py."""
    from pytest_flagperf.settings import OPTIONS

    group = parser.getgroup("flagperf", "flagperf: a benchmark of AI accelerators")
    for option in OPTIONS:
        keywords: dict[str, Any] = {"dest": f"flagperf_{option.key}", "help": option.help}
        if option.flag:
            keywords |= {"action": "store_true"}
        else:
            keywords |= {"action": "append" if option.many else "store", "metavar": option.metavar, "default": None}
            keywords |= {"type": type(option.default)} if isinstance(option.default, (int, float)) else {}
            keywords |= {"choices": option.choices, "metavar": None} if option.choices else {}
        group.addoption(f"--{option.name}", **keywords)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Open the run where there are suites."""
    from pytest_flagperf.problems import Problems
    from pytest_flagperf.settings import tree_root

    try:
        root = tree_root(config.rootpath, _command_line(config))
        if root is None:
            return
        from pytest_flagperf.run import Run

        run = Run.open(root, config.invocation_params.dir, _command_line(config), _given_directory(config))
    except Problems as problems:
        raise pytest.UsageError(str(problems)) from problems
    if run is None:
        return
    config.stash[RUN] = run
    _end_in_order_when_terminated(config)
    config.pluginmanager.register(Page(run), "flagperf-page")
    if (run.settings.plan or run.settings.preflight) and hasattr(config.option, "dist"):
        # There is nothing to do in parallel, and workers have no terminal to print on.
        config.option.dist, config.option.tx = "no", []


def _end_in_order_when_terminated(config: pytest.Config) -> None:
    """Take SIGTERM, a batch system's polite word, for a Ctrl-C: Python would end at once, and the ranks go on."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)

        def as_before() -> None:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

        config.add_cleanup(as_before)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave each report in the run directory, and no directory of a run that never was."""
    run = config.stash.get(RUN, None)
    if run is None:
        return
    run.venue.close()
    if not _is_worker(config):
        run.close(_reports_elsewhere(config, run))


def _command_line(config: pytest.Config) -> dict[str, Any]:
    prefix = "flagperf_"
    return {name.removeprefix(prefix): value for name, value in vars(config.option).items() if name.startswith(prefix)}


def _given_directory(config: pytest.Config) -> Path | None:
    """The run directory that the controller of a parallel run made."""
    given = getattr(config, "workerinput", {}).get("flagperf_directory")
    return Path(given) if given else None


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _begin(session: pytest.Session, chosen: Sequence[Selected]) -> None:
    """Check all cases before the first one starts, then switch on the reports that nobody has to ask for."""
    from pytest_flagperf.problems import Problems

    config = session.config
    run = config.stash[RUN]
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    try:
        run.check(chosen)
        if not chosen or run.settings.plan or run.settings.preflight:
            return
        told = run.prepare(chosen)
        run.reserve()
        for line in [*told, *run.remember(chosen)]:
            (print if reporter is None else reporter.write_line)(f"flagperf: {line}")
    except Problems as problems:
        raise pytest.UsageError(str(problems)) from problems
    option = config.option
    if not config.getoption("htmlpath", None) and config.pluginmanager.has_plugin("metadata"):
        option.htmlpath, option.self_contained_html = str(run.directory / "report.html"), True
        _configure_again(session, "html")
    if not config.getoption("xmlpath", None):
        option.xmlpath = str(run.directory / "junit.xml")
        _configure_again(session, "junitxml")


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


def _reports_elsewhere(config: pytest.Config, run: Run) -> dict[str, Path]:
    """The reports that the user put in a place of their own, by the name they have in the run directory."""
    asked = {"report.html": config.getoption("htmlpath", None), "junit.xml": config.getoption("xmlpath", None)}
    paths = {name: (config.invocation_params.dir / path).resolve() for name, path in asked.items() if path}
    return {name: path for name, path in paths.items() if path != (run.directory / name).resolve()}


# -- cases become tests -----------------------------------------------------------------------------------


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Generator[None, None, None]:
    """Collect without looking for garbage: items are made to stay, and the looks took a tenth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give every test that takes a case its cases, and its rounds where it takes one."""
    run = metafunc.config.stash.get(RUN, None)
    if "selected" not in metafunc.fixturenames or run is None:
        return
    chosen = run.cases_of(metafunc.definition.path.parent)
    if "round_number" in metafunc.fixturenames:
        rounds = [_param(one, number) for one in chosen if not one.throughput_only for number in one.rounds]
        metafunc.parametrize(("selected", "round_number"), rounds or [pytest.param(None, 0, id="no-case")])
        return
    if "scaling" in metafunc.fixturenames:
        chosen = [one for one in chosen if one.case.shape.cards > 1 and not one.unsupported]
    elif metafunc.cls is not None:
        # A case that cannot run is one skipped test, not three.
        chosen = [one for one in chosen if not one.unsupported]
    metafunc.parametrize("selected", [_param(one) for one in chosen] or [NO_CASE])


def _param(one: Selected, number: int | None = None) -> Any:
    marks = [pytest.mark.skip(reason=one.unsupported)] if one.unsupported else []
    if number is None:
        return pytest.param(one, id=str(one.case), marks=marks)
    return pytest.param(one, number, id=f"{one.case}-round{number}", marks=marks)


@pytest.hookimpl(hookwrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, None]:
    """Drop what takes a case and has none: pytest would show an empty parametrization as skipped."""
    made = yield
    items = made.get_result()
    if isinstance(items, list):
        made.force_result([item for item in items if not (_takes_case(item) and _selected(item) is None)])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Within a file one card comes first, and a case's tests stay together."""
    run = config.stash.get(RUN, None)
    if run is None:
        return
    files: dict[Path, int] = {}
    order = {id(one): number for number, one in enumerate(run.selection.cases)}

    def key(item: pytest.Item) -> tuple[int, int]:
        one = _selected(item)
        return files.setdefault(item.path, len(files)), order[id(one)] if one is not None else -1

    items.sort(key=key)


def _takes_case(item: pytest.Item | pytest.Collector) -> bool:
    return "selected" in getattr(getattr(item, "callspec", None), "params", ())


def _selected(item: pytest.Item | pytest.Collector) -> Selected | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("selected") if callspec is not None else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Resolve every selected case before the first one starts, so that all problems are told at once."""
    if RUN in session.config.stash and not session.config.option.collectonly and not _is_worker(session.config):
        session.config.stash[BEGUN] = any(map(_takes_case, session.items))
        _begin(session, _distinct_cases(session.items))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """With --plan or --preflight, print what would run or what the hosts are like, instead of running."""
    run = session.config.stash.get(RUN, None)
    if run is None or not (run.settings.plan or run.settings.preflight):
        return None
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    write: Callable[[str], None] = print if reporter is None else reporter.write_line
    chosen = _distinct_cases(session.items)
    if run.settings.plan:
        for one in chosen:
            write(run.describe(one))
    if run.settings.preflight:
        from pytest_flagperf.preflight import lines

        findings = run.preflight(chosen)
        for line in lines(findings):
            write(line)
        session.testsfailed += sum(finding.fatal for finding in findings)
    return True


def _distinct_cases(items: Sequence[pytest.Item]) -> list[Selected]:
    chosen = {id(one): one for item in items if (one := _selected(item)) is not None and not one.unsupported}
    return list(chosen.values())


# -- fixtures ---------------------------------------------------------------------------------------------


def _none_selected(request: pytest.FixtureRequest) -> NoReturn:
    """End a test that takes a case where there is none: in a tree with suites it is given one for each."""
    pytest.fail(
        f"{request.config.rootpath} has no suites/: a test that takes a case is run in a tree with suites", False
    )


@pytest.fixture
def selected(request: pytest.FixtureRequest) -> Selected:
    """The case as the run selected it."""
    _none_selected(request)


@pytest.fixture
def round_number(request: pytest.FixtureRequest) -> int:
    """The round that this test is about."""
    _none_selected(request)


@pytest.fixture
def flagperf_run(request: pytest.FixtureRequest) -> Run:
    """The run that this test is part of."""
    run = request.config.stash.get(RUN, None)
    return run if run is not None else _none_selected(request)


@pytest.fixture
def case(selected: Selected) -> Case:
    """The case that this test is about."""
    return selected.case


@pytest.fixture
def plan(selected: Selected, flagperf_run: Run) -> Plan:
    """What exactly runs where for this case."""
    return _or_fail(lambda: flagperf_run.plan(selected))


@pytest.fixture
def cluster(selected: Selected, flagperf_run: Run) -> Sequence[Host]:
    """The hosts of this case."""
    return flagperf_run.hosts[: selected.case.nnodes]


@pytest.fixture
def container(selected: Selected, flagperf_run: Run) -> Interpreter:
    """Where the ranks' Python lives: the interpreter and its environment."""
    return _or_fail(lambda: flagperf_run.interpreter(selected))


@pytest.fixture
def training(request: pytest.FixtureRequest, selected: Selected, round_number: int, flagperf_run: Run) -> Outcome:
    """The outcome of one round; it runs once, whoever asks first."""
    outcome = _or_fail(lambda: flagperf_run.outcome(selected, round_number))
    _remember(request.node, [outcome])
    return outcome


@pytest.fixture
def trainings(request: pytest.FixtureRequest, selected: Selected, flagperf_run: Run) -> list[Outcome]:
    """The outcomes of all rounds of the case."""
    outcomes = _or_fail(lambda: [flagperf_run.outcome(selected, number) for number in selected.rounds])
    _remember(request.node, outcomes)
    return outcomes


@pytest.fixture
def scaling(selected: Selected, trainings: list[Outcome], flagperf_run: Run) -> Scaling:
    """The rounds of a case of many cards, and what one card does."""
    return _or_fail(lambda: flagperf_run.scaling(selected, trainings))


@pytest.fixture
def monitors(training: Outcome, flagperf_run: Run) -> Mapping[str, Any]:
    """What was sampled on each host while the round ran."""
    return flagperf_run.samples(training)


@pytest.fixture
def judge(request: pytest.FixtureRequest) -> Callable[[Iterable[Verdict]], None]:
    """Record verdicts; those that are not ok are the failure, as sentences."""

    def record(verdicts: Iterable[Verdict]) -> None:
        found = list(verdicts)
        request.node.stash.setdefault(VERDICTS, []).extend(found)
        failed = [verdict.sentence for verdict in found if not verdict.ok]
        if failed or not found:
            pytest.fail("\n".join(failed) or "nothing was judged", pytrace=False)

    return record


def _remember(item: pytest.Item, outcomes: list[Outcome]) -> None:
    from pytest_flagperf.report.junit import properties

    item.stash[OUTCOMES] = outcomes
    for outcome in outcomes:
        item.user_properties.extend(properties(outcome))


def _or_fail(work: Callable[[], T]) -> T:
    """The work's result; a problem that a user can mend is a failure in sentences, not a traceback."""
    from pytest_flagperf.problems import Problems

    try:
        return work()
    except Problems as problems:
        said = str(problems)
    # Not in the handler: pytest would tell the problem twice, as the failure and as its cause.
    pytest.fail(said, pytrace=False)


# -- parallel runs ------------------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker where the run is."""
    run = node.config.stash.get(RUN, None)
    if run is not None:
        run.reserve()
        node.workerinput["flagperf_directory"] = str(run.directory)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Begin when the first worker says what there is to run; the controller itself collects nothing."""
    run = node.config.stash.get(RUN, None)
    if run is None or BEGUN in node.config.stash:
        return
    chosen = run.chosen(ids)
    node.config.stash[BEGUN] = bool(chosen)
    try:
        _begin(node.config.stash[SESSION], [one for one in chosen if not one.unsupported])
    except pytest.UsageError as error:
        pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let one worker run all cases of a suite and hardware, in their order, unless the user chose otherwise."""
    run = config.stash.get(RUN, None)
    if run is None or config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    lane = run.lane

    class Lanes(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return lane(nodeid)

    return Lanes(config, log)


# -- what people see ----------------------------------------------------------------------------------------


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what was asked for, and what cannot run and why."""
    run = config.stash.get(RUN, None)
    return [] if run is None or _is_worker(config) else run.header()


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Give the run a way to show life, past pytest's capture."""
    from pytest_flagperf.report import plots
    from pytest_flagperf.report.live import Live

    config = session.config
    config.stash[SESSION] = session
    run, reporter = config.stash.get(RUN, None), config.pluginmanager.get_plugin("terminalreporter")
    if run is None or reporter is None:
        return
    if _is_worker(config):
        # It writes to nobody.
        reporter = None
    # A worker has no terminal of its own; its stderr is the controller's.
    terminal = os.fdopen(os.dup(2 if reporter is None else 1), "w", encoding="utf-8", errors="replace")
    config.add_cleanup(terminal.close)

    def write(text: str) -> None:
        if reporter is not None and reporter.currentfspath:
            # What pytest says next of the test begins a line again.
            reporter.currentfspath = None
            text = f"\n{text}"
        terminal.write(text)
        terminal.flush()

    if config.pluginmanager.get_plugin("html") is not None:
        run.meanwhile = plots.load
    verbosity = config.get_verbosity()
    run.watch = Live(
        write,
        width=reporter._tw.fullwidth if reporter is not None else 80,
        live=terminal.isatty(),
        quiet=verbosity < 0 or (reporter is None and not terminal.isatty()),
        follow=reporter is not None and (verbosity > 0 or config.getoption("capture", "no") == "no"),
        name=getattr(config, "workerinput", {}).get("workerid"),
    )


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """Attach to the report what the tables and the HTML page show of the item."""
    result = yield
    one = _selected(item)
    if one is None:
        return
    report: pytest.TestReport = result.get_result()
    if report.skipped and item.config.getini("strict") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        report.outcome = "failed"
        report.longrepr = f"--strict makes this skip an error: {reason.removeprefix('Skipped: ')}"
    if call.when == "call" or report.failed:
        _judge_by_outcome(item, report, one)
        _attach(item, report)


def _judge_by_outcome(item: pytest.Item, report: pytest.TestReport, one: Selected) -> None:
    """Keep what was judged of the case; a test that gave no verdicts, a user's own, is one by how it ended."""
    from pytest_flagperf.results.verdicts import Verdict

    verdicts = item.stash.setdefault(VERDICTS, [])
    if all(verdict.ok for verdict in verdicts) and (report.failed or not verdicts):
        last = (report.longreprtext.strip().splitlines() or ["it passed"])[-1]
        verdicts.append(Verdict(item.name, not report.failed, report.outcome, "passed", f"{item.name}: {last}"))
    if OUTCOMES in item.stash or report.failed:
        item.config.stash[RUN].record(one, item.name, verdicts)


def _attach(item: pytest.Item, report: pytest.TestReport) -> None:
    """Put on the report what the HTML page shows; reports of parallel workers travel, so it is plain text."""
    from pytest_flagperf.report import html

    outcomes = item.stash.get(OUTCOMES, [])
    verdicts = item.stash.get(VERDICTS, [])
    report.flagperf = html.row_cells(outcomes, verdicts)  # type: ignore[attr-defined]
    if item.config.pluginmanager.get_plugin("html") is None or not outcomes:
        return
    import pytest_html.extras

    run = item.config.stash[RUN]
    parts = [html.details(run.round_directory(one), one, run.directory, verdicts) for one in outcomes]
    report.extras = [*getattr(report, "extras", []), *map(pytest_html.extras.html, parts)]  # type: ignore[attr-defined]


class Page:
    """What the HTML page shows of a run; registered only where there is one: other pages stay as they are."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_report_title(self, report: Any) -> None:
        """Name the page after what it shows; a file's name says little in a browser's tab."""
        report.title = f"flagperf {self._run.directory.name}"

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_summary(self, prefix: list[str]) -> None:
        """Bring the style of what the rows hold."""
        from pytest_flagperf.report import html

        prefix.append(html.style())

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_header(self, cells: list[str]) -> None:
        """Add the main figures' columns."""
        from pytest_flagperf.report import html

        cells[2:2] = html.header_cells()

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_row(self, report: Any, cells: list[str]) -> None:
        """Fill the main figures' columns."""
        from pytest_flagperf.report import html

        cells[2:2] = getattr(report, "flagperf", None) or html.row_cells([], [])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the run's results when the last worker is gone; a run that ran nothing is not green."""
    run = session.config.stash.get(RUN, None)
    if run is None or _is_worker(session.config):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    try:
        had_workers = session.config.pluginmanager.has_plugin("dsession")
        run.finish(session.config.invocation_params.args, int(exitstatus), had_workers)
    except OSError as error:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        (print if reporter is None else reporter.write_line)(f"flagperf: the results cannot be written: {error}")
    took_cases = session.config.stash.get(BEGUN, False)
    if exitstatus == pytest.ExitCode.OK and took_cases and reporter is not None and _only_skipped(reporter.stats):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def _only_skipped(stats: Mapping[str, Any]) -> bool:
    ran = any(stats.get(word) for word in ("passed", "failed", "error", "xfailed", "xpassed"))
    return bool(stats.get("skipped")) and not ran


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Close with the table and the paths of the reports."""
    run = config.stash.get(RUN, None)
    if run is not None and run.results is not None:
        terminalreporter.section("flagperf")
        for line in run.summary(terminalreporter._tw.fullwidth):
            terminalreporter.write_line(line)
