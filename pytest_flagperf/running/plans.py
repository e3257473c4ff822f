"""How each case would run: its plan, what is checked before the first case starts, and what --plan prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from pytest_flagperf.catalog import REFERENCE, Catalog
from pytest_flagperf.config import Value
from pytest_flagperf.engines import Engine
from pytest_flagperf.engines.agents.preflight import Finding
from pytest_flagperf.plan import Plan, make_plan
from pytest_flagperf.problems import Problems
from pytest_flagperf.results.comparing.stored_runs import StoredRuns
from pytest_flagperf.results.published import Published
from pytest_flagperf.runtime import runtimes
from pytest_flagperf.selection import Selected
from pytest_flagperf.settings import Settings

from . import judging
from .directory import RunDirectory, relative
from .forecast import convergence, duration, published


class Plans:
    """The plan of each case, made once."""

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

    def plan(self, one: Selected) -> Plan:
        """What exactly runs for a case; every problem of its config is an error here."""
        if one not in self._plans:
            settings = self._settings
            plan = make_plan(
                self._catalog,
                one.case,
                vendor=one.vendor.name,
                scale=one.scale,
                settings=settings.set,
                settings_source=settings.sources["set"],
                runtime=runtime_of(settings, one),
                launcher=settings.launcher,
                synthetic=settings.synthetic,
                throughput_only=settings.throughput_only if settings.given("throughput_only") else None,
                data_dir=Value(one.data_dir, one.data_source, 0, "case") if one.data_dir else None,
                # On other machines the data are looked for there, by the look at every host.
                check_data=not settings.plan and not self._engine.is_cluster,
            )
            self._plans[one] = replace(plan, visible_devices=self._visible_devices or plan.visible_devices)
        return self._plans[one]

    # -- before the first case starts ------------------------------------------------------------------------

    def check(self, chosen: Sequence[Selected]) -> None:
        """All problems of all cases at once, each once, before the first one starts."""
        problems: dict[str, list[str]] = {}
        for one in chosen:
            try:
                self._check_data(one, self.plan(one))
                judging.check_baseline(self._settings, str(one.case))
                self._check_place(one)
                self._engine.check(self.plan(one), one.vendor)
            except Problems as error:
                for problem in error.problems:
                    problems.setdefault(problem.removeprefix(f"case {one.case}: "), []).append(str(one.case))
        if problems:
            raise Problems(f"{problem} ({_cases(cases)})" for problem, cases in problems.items())

    def _check_place(self, one: Selected) -> None:
        runtime, hosts = runtime_of(self._settings, one), self._engine.hosts
        if runtime not in runtimes():
            raise Problems([f"--runtime={runtime}: there is none of this name; there are {', '.join(runtimes())}"])
        if not self._settings.plan and one.case.nnodes > len(hosts):
            there = ", ".join(host.name for host in hosts)
            more = "name more" if self._engine.is_cluster else "this machine; name others"
            raise Problems(
                [
                    f"case {one.case}: {one.case.nnodes} hosts are wanted and there is {len(hosts)}: {there},"
                    f" {more} with --cluster or in [cluster] of flagperf.toml; --nodes=1xP runs on one, --plan shows"
                    " the rest"
                ]
            )

    def _check_data(self, one: Selected, plan: Plan) -> None:
        if plan.data_dir is None and not plan.synthetic and one.scale == REFERENCE and not self._settings.plan:
            raise Problems(
                [
                    f"case {one.case}: no data: give --data-dir=DIR or --case CASE=DIR (what it must hold is in"
                    f" {relative(one.suite.path / 'README.md')}), or measure throughput alone with --synthetic"
                ]
            )

    def preflight(self, chosen: Sequence[Selected]) -> list[Finding]:
        """What is well and what is in the way on every host."""
        return self._engine.inspect([(self.plan(one), one.vendor) for one in chosen])

    def prepare(self, chosen: Sequence[Selected]) -> list[str]:
        """Leave out hosts and devices that are not fit; what to tell."""
        return self._engine.prepare([(self.plan(one), one.vendor) for one in chosen]) if chosen else []

    # -- what --plan prints ----------------------------------------------------------------------------------

    def describe(self, one: Selected) -> str:
        """The plan of a case as text."""
        plan = self.plan(one)
        known = convergence(plan, self._stored_runs, self._published)
        return self._engine.describe(plan, one.vendor, known, duration(plan, self._stored_runs))

    @cached_property
    def _stored_runs(self) -> StoredRuns:
        return StoredRuns(self._directory.path.parent, self._directory.path.name)

    @cached_property
    def _published(self) -> list[Published]:
        return list(published(root / "reports" / "published" for root in self._catalog.roots))


def runtime_of(settings: Settings, one: Selected) -> str:
    """Where the Python of a case's ranks comes from."""
    return settings.runtime or one.vendor.runtime


def _cases(cases: Sequence[str]) -> str:
    """Whose problem it is: the first of them, and how many more."""
    return f"case {cases[0]}" + (f" and {len(cases) - 1} more" if len(cases) > 1 else "")
