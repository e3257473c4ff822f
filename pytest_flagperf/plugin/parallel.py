"""Runs with the workers of pytest-xdist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from .exit_code import exit_with
from .session import begin, runs_tests
from .shared import RUN, SESSION, line_writer


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the run directory to a worker."""
    run = node.config.stash.get(RUN, None)
    if run is not None:
        run.directory.reserve()
        node.workerinput["flagperf_directory"] = str(run.directory.path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Start the run when the first worker has collected its tests; the controller collects no tests."""
    run = node.config.stash.get(RUN, None)
    session = node.config.stash[SESSION]
    if run is None or run.requested or not runs_tests(session):
        return
    requested = (*run.case_lookup.selected_in(ids), *run.case_lookup.absent_in(ids))
    if node.config.get_verbosity() >= 0:
        from pytest_flagperf.running.header import header

        write = line_writer(node.config)
        for line in header(run, requested):
            write(line)
    try:
        begin(session, requested)
    except pytest.UsageError as error:
        exit_with(error)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: Any, sched: Any) -> None:
    """Record the death of a worker with its case; pytest reports a failure even if another worker then passes."""
    from pytest_flagperf.results.verdicts import Verdict
    from pytest_flagperf.stored import WriteError

    run = sched.config.stash.get(RUN, None)
    test = crashitem.rpartition("::")[2]
    for selected in () if run is None else run.case_lookup.selected_in([crashitem]):
        verdict = Verdict("worker", False, "died", "running", str(report.longrepr))
        name = f"{test} (worker died)"
        try:
            run.records.record(selected.case, name, [verdict])
        except WriteError:
            run.records.keep(selected.case, name, [verdict])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run all cases of a suite and hardware on one worker, in order, unless the user passed --dist."""
    run = config.stash.get(RUN, None)
    if run is None or config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    from pytest_flagperf.selection import lane

    cases = frozenset(str(selected.case) for selected in run.selection.cases)

    class LaneScheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return lane(nodeid, cases)

    return LaneScheduling(config, log)
