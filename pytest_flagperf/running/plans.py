"""The plan of each case: made once, checked before the first case starts, and printed by --plan."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_flagperf.catalog import REFERENCE, Catalog
from pytest_flagperf.config import Value
from pytest_flagperf.engines import Engine, Finding
from pytest_flagperf.engines.agents.systems import check_system
from pytest_flagperf.engines.open_engine import ENGINES
from pytest_flagperf.plan import HEAD, Plan, PlanRequest, make_plan, overview
from pytest_flagperf.problems import Problems
from pytest_flagperf.report.terminal.live import Live
from pytest_flagperf.results.figures.units import count
from pytest_flagperf.runtime import runtimes
from pytest_flagperf.selection import Selected
from pytest_flagperf.settings import Settings
from pytest_flagperf.stored import FormatError, layout

from .directory import RunDirectory, relative

if TYPE_CHECKING:  # the modules that read results load slowly, and a run checks its hosts before it needs them
    from pytest_flagperf.results.comparing.stored_runs import StoredRuns
    from pytest_flagperf.results.tables.published import Published


class Plans:
    """The plans of the selected cases, each made once."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        engine: Engine,
        directory: RunDirectory,
        visible_devices: str | None = None,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._engine = engine
        self._directory = directory
        self._visible_devices = visible_devices
        self._plans: dict[Selected, Plan] = {}

    def plan(self, selected: Selected) -> Plan:
        """Return the plan of a case; Problems if its config is invalid."""
        if selected not in self._plans:
            settings = self._settings
            plan = make_plan(
                self._catalog,
                PlanRequest(
                    selected.case,
                    vendor=selected.vendor.name,
                    scale=selected.scale,
                    settings=settings.set,
                    settings_source=settings.sources["set"],
                    runtime=runtime_of(settings, selected),
                    synthetic=settings.synthetic,
                    throughput_only=settings.throughput_only if settings.given("throughput_only") else None,
                    data_dir=Value(selected.data_dir, selected.data_source, 0, "case") if selected.data_dir else None,
                    # In a cluster the preflight checks the data on the hosts; hosts can be checked without data.
                    check_data=self._is_local
                    and not settings.plan
                    and not (settings.preflight and not selected.data_dir),
                ),
            )
            self._plans[selected] = replace(plan, visible_devices=self._visible_devices or plan.visible_devices)
        return self._plans[selected]

    @property
    def _is_local(self) -> bool:
        """Return True if the run uses this machine."""
        return self._engine.host_count is not None and all(host.is_local for host in self._engine.hosts)

    # -- before the first case starts ------------------------------------------------------------------------

    def check(self, chosen: Sequence[Selected]) -> None:
        """Raise Problems with all problems of all cases, each problem once."""
        problems: dict[str, list[str]] = {}
        for selected in chosen:
            try:
                self._check_data(selected)
                check_baseline(self._settings, str(selected.case))
                self._check_hosts(selected)
                self._engine.check(self.plan(selected), selected.vendor)
            except Problems as error:
                for problem in error.problems:
                    problems.setdefault(problem.removeprefix(f"case {selected.case}: "), []).append(str(selected.case))
        if problems:
            raise Problems(f"{problem} ({_cases(cases)})" for problem, cases in problems.items())

    def _check_hosts(self, selected: Selected) -> None:
        runtime, host_count = runtime_of(self._settings, selected), self._engine.host_count
        if runtime not in runtimes():
            raise Problems([f"--runtime={runtime}: unknown runtime; choose from {', '.join(runtimes())}"])
        if not self._settings.plan and host_count is not None and selected.case.nnodes > host_count:
            names = ", ".join(host.name for host in self._engine.hosts[:host_count])
            available = f"{names} (this machine)" if self._is_local else names
            of_cluster = self._settings.engine in ENGINES
            more = "add hosts with --cluster or in [cluster] of flagperf.toml, or " if of_cluster else ""
            raise Problems(
                [
                    f"case {selected.case}: needs {selected.case.nnodes} hosts, {host_count} available: {available};"
                    f" {more}pass --nodes=1xP to run on one; --plan works without the hosts"
                ]
            )

    def without_data(self, chosen: Sequence[Selected]) -> int:
        """Return how many of the cases read training data, but have none."""
        plans = [self.plan(selected) for selected in chosen if selected.scale == REFERENCE]
        return sum(plan.data_dir is None and not plan.synthetic for plan in plans)

    def _check_data(self, selected: Selected) -> None:
        starts_nothing = self._settings.plan or self._settings.preflight
        if self.without_data([selected]) and not starts_nothing:
            raise Problems(
                [
                    f"case {selected.case}: no training data: pass --data-dir=DIR or --case CASE=DIR (the expected"
                    f" files are in {relative(selected.suite.path / 'README.md')}), or pass --synthetic to measure only"
                    " throughput"
                ]
            )

    def preflight(self, chosen: Sequence[Selected], watch: Live) -> list[Finding]:
        """Return the findings of the preflight on every host."""
        self.check_system()
        return self._engine.inspect([(self.plan(selected), selected.vendor) for selected in chosen], watch)

    def prepare(self, chosen: Sequence[Selected], watch: Live) -> list[str]:
        """Exclude hosts and devices that are not usable; return a line for each."""
        if not chosen:
            return []
        hosts = self._engine.host_count
        where = "" if hosts is None else f" on {count(hosts, 'host')}"
        watch.phase(f"preflight: {count(len(chosen), 'case')}{where}")
        try:
            return self._engine.prepare([(self.plan(selected), selected.vendor) for selected in chosen], watch)
        finally:
            watch.clear()

    def check_system(self) -> list[str]:
        """Return a warning about the system of this machine; Problems if our engines cannot run rounds from it."""
        return check_system(only_other_hosts=not self._is_local) if self._settings.engine in ENGINES else []

    # -- what --plan prints ----------------------------------------------------------------------------------

    def describe(self, selected: Selected) -> str:
        """Return the plan of a case as text."""
        from .forecast import convergence, duration

        plan = self.plan(selected)
        converges = convergence(plan, self._stored_runs, self._published)
        return self._engine.describe(plan, selected.vendor, converges, duration(plan, self._stored_runs))

    def table(self, chosen: Sequence[Selected]) -> list[str]:
        """Return a table with a line for each case: what it measures, and how long a round takes."""
        from pytest_flagperf.report.terminal.table import aligned

        from .forecast import duration

        plans = [self.plan(selected) for selected in chosen]
        # The source of an estimate is only in the full plan.
        durations = [re.split(" per round|:", next(duration(plan, self._stored_runs)))[0] for plan in plans]
        rows = [overview(plan, text) for plan, text in zip(plans, durations, strict=True)]
        return aligned([HEAD, *rows], left=len(HEAD))

    @cached_property
    def _stored_runs(self) -> StoredRuns:
        from pytest_flagperf.results.comparing.stored_runs import StoredRuns

        return StoredRuns(self._directory.path.parent, self._directory.path.name)

    @cached_property
    def _published(self) -> list[Published]:
        from .forecast import published

        return list(published(root / "reports" / "published" for root in self._catalog.roots))


def check_baseline(settings: Settings, case: str) -> None:
    """Raise Problems before the run if the baseline of a case, or the folder of baselines, cannot be read."""
    folder = Path(settings.baselines)
    if folder.exists() and not folder.is_dir():
        raise Problems([f"{settings.as_written('baselines')}: is a file; expected the folder of the baselines"])
    if settings.given("baselines") and not folder.is_dir():
        advice = "create it, and fill it with flagperf accept"
        raise Problems([f"{settings.as_written('baselines')}: folder not found; {advice}"])
    if not (folder / layout.baseline_file(case)).exists():
        return
    from .judging import stored_baseline

    try:
        stored_baseline(folder, case)
    except FormatError as error:
        raise Problems(f"{line}; fix or remove it" for line in str(error).splitlines()) from error


def runtime_of(settings: Settings, selected: Selected) -> str:
    """Return the runtime that provides the Python of a case's ranks."""
    return settings.runtime or selected.vendor.runtime


def _cases(cases: Sequence[str]) -> str:
    """Return the first of the cases, and how many more there are."""
    return f"case {cases[0]}" + (f" and {len(cases) - 1} more" if len(cases) > 1 else "")
