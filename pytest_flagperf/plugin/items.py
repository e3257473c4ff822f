"""Collection: the tests of cases and their ids, without those that have none, sorted by case."""

from __future__ import annotations

import gc
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .shared import RUN, SESSION

if TYPE_CHECKING:
    from pytest_flagperf.running.run import Run
    from pytest_flagperf.selection import Absent, Selected


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect without garbage collection, which took a tenth of the time; the items stay in use anyway."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return (yield)
    finally:
        if was_on:
            gc.enable()


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Give a test of the bundled suites the node id of a checkout, which can be passed to pytest."""
    if RUN not in parent.config.stash:
        return None
    from pytest_flagperf.catalog import bundled_name

    name = bundled_name(module_path)
    return pytest.Module.from_parent(parent, path=module_path, nodeid=name) if name else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize every test that uses a case with its cases, or with their rounds."""
    run = metafunc.config.stash.get(RUN, None)
    if "selected" not in metafunc.fixturenames or run is None:
        return
    from pytest_flagperf.hooks.plugins import having

    marks = _marks(metafunc, run)
    chosen = run.case_lookup.cases_of(metafunc.definition.path.parent)
    if _is_benchmark(metafunc):
        chosen = [selected for selected in chosen if selected.suite.kind == metafunc.cls.kind]
    if "plugin_verdicts" in metafunc.fixturenames and not having("flagperf_verdicts"):
        chosen = []
    if "round_number" in metafunc.fixturenames:
        trained = [selected for selected in chosen if not selected.throughput_only]
        rounds = [_parameter(selected, marks, number) for selected in trained for number in selected.rounds]
        metafunc.parametrize(("selected", "round_number"), rounds or [pytest.param(None, 0, id="no-case")])
        return
    if {"scaling", "siblings"}.intersection(metafunc.fixturenames):
        chosen = [selected for selected in chosen if selected.case.shape.cards > 1 and not selected.unsupported]
    elif "promised" in metafunc.fixturenames:
        chosen = [selected for selected in chosen if not selected.unsupported and selected.is_promised]
    elif metafunc.cls is not None and "measurements" not in metafunc.fixturenames:
        # A case that cannot run is one skipped test, of a round or of its measurements, not one for each method.
        chosen = [selected for selected in chosen if not selected.unsupported]
    cases = [_parameter(selected, marks) for selected in chosen]
    metafunc.parametrize("selected", cases or [pytest.param(None, id="no-case")])


def _marks(metafunc: pytest.Metafunc, run: Run) -> list[pytest.MarkDecorator]:
    """Return the markers of the kind and of the criterion; fail for a benchmark class without a suite of its kind."""
    from pytest_flagperf.kind import kind_named

    if not _is_benchmark(metafunc):
        return []
    if problem := run.case_lookup.wrong_suite(metafunc.definition.path.parent, metafunc.cls.kind):
        pytest.fail(f"class {metafunc.cls.__name__} in {metafunc.definition.path}: {problem}", pytrace=False)
    kind = kind_named(metafunc.cls.kind)
    criterion = kind.criterion(metafunc.definition.name)
    names = [*kind.markers, *([criterion.name] if criterion else [])]
    return [getattr(pytest.mark, name) for name in names]


def _is_benchmark(metafunc: pytest.Metafunc) -> bool:
    from pytest_flagperf.benchmark import Benchmark

    return metafunc.cls is not None and issubclass(metafunc.cls, Benchmark)


def _parameter(selected: Selected, marks: Sequence[pytest.MarkDecorator], number: int | None = None) -> Any:
    if selected.unsupported:
        marks = [*marks, pytest.mark.skip(reason=selected.unsupported)]
    if number is None:
        return pytest.param(selected, id=str(selected.case), marks=marks)
    return pytest.param(selected, number, id=f"{selected.case}-round{number}", marks=marks)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """Drop tests whose parametrization has no cases; pytest would show them as skipped."""
    items = yield
    if isinstance(items, list):
        return [item for item in items if not (takes_case(item) and selected_of(item) is None)]
    return items


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests of each file by case, with one card first, and add the keywords of the cases for -k."""
    run = config.stash.get(RUN, None)
    if run is None:
        return
    items += _absent_items(config)
    files: dict[Path, int] = {}
    order = {id(selected): number for number, selected in enumerate(run.selection.cases)}

    def key(item: pytest.Item) -> tuple[int, int]:
        selected = selected_of(item)
        return files.setdefault(item.path, len(files)), order[id(selected)] if selected is not None else -1

    items.sort(key=key)
    for item in items:
        if (selected := selected_of(item)) is not None:
            item.extra_keyword_matches.update(selected.keywords)


class AbsentCase(pytest.Item):
    """A case of FlagPerf's test_conf.py without a suite: one skipped test."""

    def __init__(self, *, absent: Absent, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.absent = absent

    def runtest(self) -> None:
        pytest.skip(self.absent.unsupported)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name


def _absent_items(config: pytest.Config) -> list[pytest.Item]:
    """Return a skipped test for each case without a suite, if the run collects the tests of all models."""
    run, session = config.stash[RUN], config.stash[SESSION]
    paths = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    absent = {f"unsupported[{case.case}]": case for path in paths for case in run.case_lookup.absent_of(path)}
    return [
        AbsentCase.from_parent(session, name=name, nodeid=f"suites::{name}", absent=case)
        for name, case in absent.items()
    ]


def takes_case(item: pytest.Item | pytest.Collector) -> bool:
    """Return True if an item uses a case, even a case that cannot run."""
    return isinstance(item, AbsentCase) or "selected" in getattr(getattr(item, "callspec", None), "params", ())


def selected_of(item: pytest.Item | pytest.Collector) -> Selected | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("selected") if callspec is not None else None


def requested_cases(items: Sequence[pytest.Item]) -> list[Selected | Absent]:
    """Return the cases of items without duplicates, also those that cannot run; the cases without a suite come last."""
    selected = {id(case): case for item in items if (case := selected_of(item)) is not None}
    return [*selected.values(), *(item.absent for item in items if isinstance(item, AbsentCase))]
