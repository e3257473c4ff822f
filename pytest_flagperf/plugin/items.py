"""Cases become tests."""

from __future__ import annotations

import gc
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .shared import RUN, SESSION, line_writer

if TYPE_CHECKING:
    from pytest_flagperf.running.run import Run
    from pytest_flagperf.selection import Absent, Selected

NO_CASE = pytest.param(None, id="no-case")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect without looking for garbage: items are made to stay, and the looks took a tenth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return (yield)
    finally:
        if was_on:
            gc.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give every test that takes a case its cases, and its rounds where it takes one."""
    run = metafunc.config.stash.get(RUN, None)
    if "selected" not in metafunc.fixturenames or run is None:
        return
    _check_suite(metafunc, run)
    chosen = run.case_lookup.cases_of(metafunc.definition.path.parent)
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


def _check_suite(metafunc: pytest.Metafunc, run: Run) -> None:
    """Fail the collection of a benchmark class outside every suite: the cases of other suites are not its own."""
    from pytest_flagperf.benchmark import TrainingBenchmark

    if metafunc.cls is None or not issubclass(metafunc.cls, TrainingBenchmark):
        return
    if problem := run.case_lookup.no_suite(metafunc.definition.path.parent):
        pytest.fail(f"class {metafunc.cls.__name__} in {metafunc.definition.path}: {problem}", pytrace=False)


def _param(one: Selected, number: int | None = None) -> Any:
    marks = [pytest.mark.skip(reason=one.unsupported)] if one.unsupported else []
    if number is None:
        return pytest.param(one, id=str(one.case), marks=marks)
    return pytest.param(one, number, id=f"{one.case}-round{number}", marks=marks)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Give a test of the wheel's suites the node id that it has in a checkout, and that can be passed to pytest."""
    if RUN not in parent.config.stash:
        return None
    from pytest_flagperf.catalog import bundled_name

    name = bundled_name(module_path)
    return pytest.Module.from_parent(parent, path=module_path, nodeid=name) if name else None


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """Drop what takes a case and has none: pytest would show an empty parametrization as skipped."""
    items = yield
    if isinstance(items, list):
        return [item for item in items if not (takes_case(item) and selected_of(item) is None)]
    return items


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Within a file one card comes first, and a case's tests stay together; -k finds a case by its keywords."""
    run = config.stash.get(RUN, None)
    if run is None:
        return
    items += _absent(config)
    files: dict[Path, int] = {}
    order = {id(one): number for number, one in enumerate(run.selection.cases)}

    def key(item: pytest.Item) -> tuple[int, int]:
        one = selected_of(item)
        return files.setdefault(item.path, len(files)), order[id(one)] if one is not None else -1

    items.sort(key=key)
    for item in items:
        if (one := selected_of(item)) is not None:
            item.extra_keyword_matches.update(one.keywords)


class AbsentCase(pytest.Item):
    """A case of the original's file that no suite here trains: one skipped test."""

    def __init__(self, *, absent: Absent, **words: Any) -> None:
        super().__init__(**words)
        self.absent = absent

    def runtest(self) -> None:
        pytest.skip(self.absent.unsupported)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name


def _absent(config: pytest.Config) -> list[pytest.Item]:
    """Return a skipped test for each case without a suite, where the run collects the tests of all models."""
    run, session = config.stash[RUN], config.stash[SESSION]
    places = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    found = {f"unsupported[{one.case}]": one for place in places for one in run.case_lookup.absent_of(place)}
    return [
        AbsentCase.from_parent(session, name=name, nodeid=f"suites::{name}", absent=one) for name, one in found.items()
    ]


def takes_case(item: pytest.Item | pytest.Collector) -> bool:
    """Return whether an item is about a case, even a case that cannot run."""
    return isinstance(item, AbsentCase) or "selected" in getattr(getattr(item, "callspec", None), "params", ())


def selected_of(item: pytest.Item | pytest.Collector) -> Selected | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("selected") if callspec is not None else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """With --plan or --preflight, print what would run or what the hosts are like, instead of running."""
    run = session.config.stash.get(RUN, None)
    if run is None or not (run.settings.plan or run.settings.preflight):
        return None
    write = line_writer(session.config)
    chosen = distinct_cases(session.items)
    if run.settings.plan:
        for one in chosen:
            write(run.plans.describe(one))
        if session.config.get_verbosity() < 0:  # else the lines after the collection name them
            absent = (item.absent for item in session.items if isinstance(item, AbsentCase))
            skipped: list[Selected | Absent] = [one for one in all_cases(session.items) if one.unsupported]
            for skip in [*skipped, *absent]:
                write(f"cannot run: {skip.case}: {skip.unsupported}")
        if not chosen:
            session.testscollected = 0  # a plan of nothing is not green, as a run of nothing is not
    if run.settings.preflight:
        from pytest_flagperf.engines.agents.preflight import lines

        findings = run.plans.preflight(chosen)
        for line in lines(findings):
            write(line)
        session.testsfailed += sum(finding.fatal for finding in findings)
    return True


def all_cases(items: Sequence[pytest.Item]) -> list[Selected]:
    """The cases of items, each once, those that cannot run among them."""
    return list({id(one): one for item in items if (one := selected_of(item)) is not None}.values())


def distinct_cases(items: Sequence[pytest.Item]) -> list[Selected]:
    """The cases of items that can run, each once."""
    return [one for one in all_cases(items) if not one.unsupported]
