"""Runs that pytest-xdist spreads over workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from .session import begin
from .shared import BEGUN, RUN, SESSION, line_writer


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker where the run is."""
    run = node.config.stash.get(RUN, None)
    if run is not None:
        run.directory.reserve()
        node.workerinput["flagperf_directory"] = str(run.directory.path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Begin when the first worker says what there is to run; the controller itself collects nothing."""
    run = node.config.stash.get(RUN, None)
    if run is None or BEGUN in node.config.stash:
        return
    chosen = run.case_lookup.selected_in(ids)
    absent = run.case_lookup.absent_in(ids)
    node.config.stash[BEGUN] = bool(chosen or absent)
    if node.config.get_verbosity() >= 0:
        from pytest_flagperf.running.header import header

        write = line_writer(node.config)
        for line in header(run, chosen, absent):
            write(line)
    try:
        begin(node.config.stash[SESSION], [one for one in chosen if not one.unsupported])
    except pytest.UsageError as error:
        pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: Any, sched: Any) -> None:
    """Keep with the case that its worker died: pytest calls that a failure, also where another worker then passes."""
    from pytest_flagperf.results.verdicts import Verdict
    from pytest_flagperf.stored import WriteError

    run = sched.config.stash.get(RUN, None)
    test = crashitem.rpartition("::")[2]
    for one in () if run is None else run.case_lookup.selected_in([crashitem]):
        verdict = Verdict("worker", False, "died", "running", str(report.longrepr))
        name = f"{test}, on the worker that died"
        try:
            run.records.record(one.case, name, [verdict])
        except WriteError:
            run.records.keep(one.case, name, [verdict])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let one worker run all cases of a suite and hardware, in their order, unless the user chose otherwise."""
    run = config.stash.get(RUN, None)
    if run is None or config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    from pytest_flagperf.selection import lane

    known = frozenset(str(one.case) for one in run.selection.cases)

    class Lanes(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return lane(nodeid, known)

    return Lanes(config, log)
