"""The engine that runs rounds under agents: one agent on each host, on this machine, over SSH or in a Slurm job."""

from __future__ import annotations

import logging
import secrets
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flagperf_driver.node import device_lease
from pytest_flagperf.case import Case
from pytest_flagperf.catalog import REFERENCE, Catalog, Vendor
from pytest_flagperf.engines import WARN, Engine, Finding, is_local
from pytest_flagperf.hosts import Host, HostError, HostLost
from pytest_flagperf.hosts.cluster import ClusterConfig, read_cluster
from pytest_flagperf.hosts.host_pool import HostPool, allow_descriptors, one_core, run_on_each
from pytest_flagperf.plan import Plan, describe
from pytest_flagperf.plan.checkout import checkout
from pytest_flagperf.problems import MissingHosts, Problems
from pytest_flagperf.progress import note, subscribed
from pytest_flagperf.runtime import EngineRequirements, Interpreter, RuntimeSetupError, runtimes
from pytest_flagperf.settings import Settings
from pytest_flagperf.stored import FormatError, WriteError
from pytest_flagperf.stored.round_dir import RoundDir, RoundFault, earlier_tries, runs_beside

from . import preflight
from .agents import Acquisition, Agents, DeviceRequest, attach_agent, reserved
from .allocation import Allocation, Blamed
from .collect import LateLogs
from .drill import refuse_drill
from .environments import Environments
from .preflight import Data
from .run_round import RoundOptions, follow_round, run_round

_log = logging.getLogger("flagperf.preflight")
_REMOVE_S = 600.0  # the longest time to remove the states of a training
_SYSTEMS = {"darwin": "macOS", "win32": "Windows"}


class AgentsEngine(Engine):
    """Runs rounds on the hosts of an allocation, with an agent on each; connects only when needed."""

    def __init__(self, settings: Settings, catalog: Catalog, allocation: Allocation) -> None:
        self._settings = settings
        self._catalog = catalog
        self._allocation = allocation
        cluster = settings.cluster_table
        self._limits = (read_cluster(cluster.table, cluster.file) if cluster else ClusterConfig()).log_limits
        self._environments = Environments(settings, catalog)
        self._rounds_with_missing_logs: list[Path] = []
        self._blamed = Blamed(self._allocation)
        self._reservation: ExitStack | None = None
        self._unfit: dict[str, set[int]] = {}
        self._near: dict[str, dict[int, Sequence[int]]] = {}
        # Two runs that begin in the same second on two machines need different folders on the hosts.
        self._suffix = secrets.token_hex(4)

    @property
    def host_count(self) -> int | None:
        return self._allocation.host_count

    def header(self) -> list[str]:
        return self._allocation.header()

    @property
    def hosts(self) -> tuple[Host, ...]:
        return self._allocation.pool.hosts

    def _vendor(self, plan: Plan) -> Vendor:
        return self._catalog.vendors[plan.vendor]

    def _lease(self, vendor: Vendor) -> str:
        """Return what a case reserves: its devices or the whole host."""
        return self._settings.lease or vendor.toml.lease

    @property
    def _pool(self) -> HostPool:
        return self._allocation.pool

    def close(self) -> None:
        self._allocation.close()

    # -- what will run ---------------------------------------------------------------------------------------

    def check(self, plan: Plan) -> None:
        """Raise Problems if the case cannot run with its vendor and these options."""
        problems = runtimes()[plan.runtime].check(self._environments.request_of(plan))
        if problems:
            raise Problems(problems)

    def notes(self, case: Case, vendor: Vendor, runtime: str) -> list[str]:
        """Return notes on a case that may surprise users."""
        kind = runtimes()[runtime]
        notes = kind.notes(self._environments.request(case, vendor, runtime), str(case))
        if case.framework_version and not kind.uses_images:
            why = "without a container (--runtime) the installed version is used and recorded"
            notes = [f"{case}: the version selects a container image; {why}", *notes]
        return notes

    def describe(self, plan: Plan, convergence: str = "", duration: Iterable[str] = ()) -> str:
        """Return the text that ``--plan`` prints for a case."""
        request = self._environments.request_of(plan)
        vendor = self._vendor(plan)
        return describe(plan, vendor, self._lease(vendor), request, convergence, duration, self.hosts)

    def interpreter(self, plan: Plan) -> Interpreter:
        """Return the Python of the case's framework, prepared on the first usable hosts."""
        self._obtain(plan)
        hosts = self._pool.usable[: plan.shape.nnodes]
        return self._environments.interpreters(plan, hosts)[hosts[0].name]

    # -- before the first case -------------------------------------------------------------------------------

    def inspect(self, plans: Sequence[Plan]) -> list[Finding]:
        """Check every host, for all cases of a vendor at once."""
        check_system(only_other_hosts=not is_local(self))
        self._allocation.check(plans)
        if self.host_count is None and plans:
            # One case of the most hosts stands for all, since each case may get other hosts.
            plan = max(plans, key=lambda each: (each.case.nnodes, each.case.nproc))
            try:
                with subscribed():  # no output
                    self._allocation.obtain(plan)
                return self._findings([plan])
            except HostError as error:
                raise Problems([f"case {plan.case}: {error}"]) from error
            finally:
                self._allocation.release()
        return self._findings(plans)

    def _findings(self, plans: Sequence[Plan], meanwhile: Callable[[Host], None] = lambda _: None) -> list[Finding]:
        by_vendor: dict[str, list[Plan]] = {}
        for plan in plans:
            by_vendor.setdefault(plan.vendor, []).append(plan)
        with one_core(self.hosts):
            return [
                finding
                for own in by_vendor.values()
                for finding in preflight.inspect(self.hosts, self._host_requirements(own), meanwhile)
            ]

    def prepare(self, plans: Sequence[Plan]) -> list[str]:
        """Check every host and exclude unfit hosts and devices; return messages. Problems if too few hosts are left.

        With ``--plan`` only the folders of the data and the installed Pythons are inspected.
        """
        if self._settings.plan:
            without = [plan for plan in plans if plan.data_dir and not Path(plan.data_dir).is_dir()]
            missing = [f"{plan.case}: no data: {plan.data_dir}: no such folder" for plan in without]
            return missing + self._environments.warnings(plans, self.hosts)
        warnings = check_system(only_other_hosts=not is_local(self))
        self._allocation.check(plans)
        # Hosts that a case requests are checked when it gets them.
        if self.host_count is None:
            return warnings
        warnings += self._exclude_unfit(plans)
        warnings += self._environments.warnings(plans, self._pool.usable)
        return warnings + self._environments.to_build(plans, self._pool.usable[0])

    def _exclude_unfit(self, plans: Sequence[Plan]) -> list[str]:
        few_files = allow_descriptors(len(self.hosts))
        # The cases' Pythons are inspected while the hosts measure their load.
        findings = self._findings(plans, lambda host: self._environments.look(plans, host))
        for finding in findings:
            _log.info("%s: %s", finding.level, finding.sentence)
        if self._settings.drill and not self._settings.drill_here:
            refuse_drill(findings)
        fatal = preflight.sentences(findings)
        required = max((plan.shape.nnodes for plan in plans), default=0)
        reasons: dict[str, list[str]] = {}
        for finding in findings:
            if finding.fatal:
                reasons.setdefault(finding.host, []).append(finding.sentence)
        for host in self.hosts:
            if host.name in reasons:
                self._pool.exclude(host, "; ".join(reasons[host.name]))
        if len(self._pool.usable) < required:
            raise MissingHosts(fatal)
        self._unfit, self._near = preflight.unfit_devices(findings), preflight.near_devices(findings)
        left_out = [*few_files, *(f"left out: {sentence}" for sentence in fatal)]
        return left_out + [f"warning: {sentence}" for sentence in preflight.sentences(findings, WARN)]

    def leave_out(self, left_out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Exclude what another process of the run excluded; return what is, and the cores near each device."""
        if left_out is not None:
            for host in self.hosts:
                if host.name in left_out["hosts"]:
                    self._pool.exclude(host, left_out["hosts"][host.name])
            self._unfit = {name: set(devices) for name, devices in left_out["devices"].items()}
            self._near = {
                name: {int(device): cpus for device, cpus in cores.items()} for name, cores in left_out["near"].items()
            }
            self._environments.builds = str(left_out["builds"])
        return {
            "hosts": dict(self._pool.excluded),
            "devices": {name: sorted(devices) for name, devices in self._unfit.items()},
            "near": self._near,
            "builds": self._environments.builds,
        }

    def _host_requirements(self, plans: Sequence[Plan]) -> preflight.HostRequirements:
        vendor, allowed = self._vendor(plans[0]), self._allocation.devices(plans[0])
        chip = vendor.chip(plans[0].case.hardware)
        engines = (self._engine_requirements(plan) for plan in plans)
        data = (
            Data(plan.data_dir, plan.manifest)
            for plan in plans
            if plan.data_dir and plan.scale == REFERENCE and not plan.synthetic
        )
        return preflight.HostRequirements(
            code=self._environments.code(plans[0]),
            nnodes=max(plan.shape.nnodes for plan in plans),
            nproc=max(plan.case.nproc for plan in plans),
            hardware=plans[0].case.hardware,
            chips={name: chip.names for name, chip in vendor.chips.items()},
            devices_per_host=None if allowed else chip.devices_per_host,
            allowed=allowed,
            held_by=self._allocation.held_by(),
            **_device_source(vendor),
            engine=next(filter(None, engines), None),
            data=tuple(dict.fromkeys(data)),
            clear_caches=self._settings.clear_caches,
            folder=self._settings.reports,
        )

    def _engine_requirements(self, plan: Plan) -> EngineRequirements | None:
        """Return the case's requirements on container engines; None without containers."""
        request = self._environments.request_of(plan)
        try:
            return runtimes()[plan.runtime].engine(request)
        except RuntimeSetupError as error:
            raise Problems([f"case {plan.case}: {error}"]) from error

    # -- rounds ----------------------------------------------------------------------------------------------

    def run(self, plan: Plan, number: int, directory: Path, wait_s: float | None) -> Callable[[], None] | None:
        """Run a round on free hosts and devices; its directory records how it ended."""
        end, summed_up = None, plan.shape.nnodes > self._limits.max_whole_hosts
        last = number >= plan.case.repeat and not plan.replay.get("states")  # which end_replay gives back
        self._blamed.begin(directory)
        try:
            self._obtain(plan, wait_s)
            self._look_again(plan)
            request = self._device_request(plan, directory)
            self._fetch_missing_logs()
            self._environments.build_ahead(plan, self._pool)
            with (
                one_core(self.hosts),
                Agents(self._limits, restarts=self._settings.restarts > 0) as agents,
            ):
                code = self._environments.code(plan)
                again = self._reservation is not None
                note("waited", seconds=Acquisition(self._pool, code, request, agents, again=again).run())
                self._end_reservation()
                hosts = [agent.host for agent in agents.all]
                end = run_round(
                    plan,
                    number,
                    directory,
                    agents=agents,
                    interpreters=self._environments.interpreters(plan, hosts),
                    options=self._round_options(plan, directory),
                )
                kept = end.fault is not None and self._settings.restarts > 0
                if kept:  # before the agents give up their devices
                    self._reservation = ExitStack()
                    self._reservation.enter_context(reserved(self._pool))
            self._rounds_with_missing_logs += [directory] if end.missing else []
        except WriteError:
            raise
        except (HostError, device_lease.LeaseError, OSError) as error:
            why = self._allocation.explain()
            kind = MissingHosts if isinstance(error, HostError) else Problems
            raise kind([f"case {plan.case}: {why.sentence + ': ' if why else ''}{error}"]) from error
        finally:
            note("phase_end")
            if end is None or end.fault:
                self._environments.forget()  # an image or an environment may have been removed meanwhile
            if (end is None and not plan.replay.get("states")) or (last and not kept and not summed_up):
                self._allocation.release()
        if end.fault is not None and kept:
            self._blamed.leave_out(end.fault, plan.shape.nnodes)
        elif not summed_up:
            return None

        def give_back() -> None:
            self._end_reservation()
            if last:
                self._allocation.release()

        return give_back

    def end_replay(self, plan: Plan, number: int, directory: Path) -> None:
        """Remove the states where the ranks see them: in a container its options may give the folder another place."""
        own = RoundDir(directory)
        starts = [start for start in (*earlier_tries(own), own) if start.is_planned]
        try:
            names = {placed.name for start in starts for placed in start.read_plan().hosts}
            hosts = [host for host in self._allocation.pool_of(directory).hosts if host.name in names]
            for host, error in run_on_each(hosts, lambda host: self._remove_states(plan, host)).items():
                if error:
                    note("line", text=f"{plan.case}: {host.name}: {plan.replay['states']} was not removed: {error}")
        except (FormatError, Problems, RuntimeSetupError) as error:
            note("line", text=f"{plan.case}: {plan.replay['states']} was not removed: {error}")
        finally:
            if number >= plan.case.repeat or not own.has_record:
                self._allocation.release()

    def _remove_states(self, plan: Plan, host: Host) -> str:
        """Return why a host still has the states; empty if they are removed."""
        argv, container = ["rm", "-rf", str(plan.replay["states"])], None
        if runtimes()[plan.runtime].uses_images:
            container = self._environments.interpreters(plan, [host])[host.name].container
        run = partial(host.run, timeout_s=_REMOVE_S) if container is None else partial(container.run, host, _REMOVE_S)
        try:
            done = run(argv)
        except HostLost:
            host.reconnect()
            done = run(argv)
        return done.err.strip() or f"exit code {done.code}" if done.code else ""

    def _end_reservation(self) -> None:
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None

    def _look_again(self, plan: Plan) -> None:
        """If too few hosts are left for another start, use those again that pass the preflight."""
        left_out = self._blamed.hosts
        if not left_out or len(self._pool.usable) >= plan.shape.nnodes:
            return
        connected = run_on_each(left_out, lambda host: host.reconnect())
        there = [host for host, problem in connected.items() if not isinstance(problem, HostError)]
        findings = preflight.inspect(there, self._host_requirements([plan]))
        unfit = {finding.host for finding in findings if finding.fatal}
        for host in there:
            if host.name not in unfit:
                self._pool.include(host)
                note("line", text=f"{host.name} is used again: it passes the preflight")

    def _obtain(self, plan: Plan, wait_s: float | None = None) -> None:
        """Hold the hosts of a case, unless they are given. New hosts are checked; Problems if they are unfit."""
        if self.host_count is None and self._allocation.obtain(plan, wait_s):
            try:
                lines = self._exclude_unfit([plan])
            except MissingHosts as error:
                raise MissingHosts(f"{self._allocation.held_by()}: {problem}" for problem in error.problems) from error
            for line in lines:
                note("line", text=line)

    def _explained(self, fault: RoundFault, hosts: Iterable[str]) -> RoundFault:
        """Return a fault with its cause, if the scheduler took the round's hosts; else with the scheduler's news."""
        why = self._allocation.explain()
        lost = next((name for name in hosts if why and name in why.hosts), None)
        if why and (lost or not why.hosts):
            return RoundFault(why.kind, lost or fault.host, None, f"{why.sentence}: {fault.sentence}", fault.last_lines)
        news = why.sentence if why else self._allocation.held_by()
        return replace(fault, sentence=f"{fault.sentence} ({news})") if news else fault

    def resume(self, directory: Path, end_because: str | None = None) -> bool:
        """Resume a round that another controller left running, or end it; return False if it is not running any more.

        If it is not running, fetch the logs that hosts still have.
        """
        if (resumed := self._attach(directory, end_because)) is False:
            self.late_logs.fetch_abandoned(directory)
        return bool(resumed)

    def _attach(self, directory: Path, end_because: str | None) -> bool | None:
        """Resume or end a round, and return whether that was possible; None if no rank was started: no log exists."""
        try:
            placed = RoundDir(directory).read_hosts()
        except FormatError:
            return False
        pool = self._allocation.pool_of(directory)
        hosts = [pool.host(place.name) for place in placed]
        if None in hosts:
            return False
        lease_s = self._settings.lease_time
        try:
            with Agents(self._limits, restarts=self._settings.restarts > 0) as agents:
                try:
                    for host, place in zip(filter(None, hosts), placed, strict=True):
                        agents.join(attach_agent(host, directory, place, lease_s))
                except HostError:
                    agents.dismiss(keep=[agent.name for agent in agents.all])  # to fetch their logs later
                    raise
                if not all(agent.is_started for agent in agents.all):
                    agents.dismiss(keep=(started := [agent.name for agent in agents.all if agent.is_started]))
                    return False if started else None
                action = "ending it" if end_because else "resuming it"
                note("line", text=f"{directory.parent.name} {directory.name} still runs: {action}")
                end = follow_round(directory, agents, end_because=end_because, explain=self._explained)
        except HostError:
            return False
        finally:
            note("phase_end")
        if end.fault is not None and end_because is None and self._settings.restarts > 0:
            self._blamed.begin(directory)
            self._blamed.leave_out(end.fault, len(placed))
        return True

    def fetch_late_logs(self, directories: Sequence[Path], kept_by: Collection[str] = ()) -> list[str]:
        """Fetch the logs that hosts kept; return a sentence for each that was fetched or is still missing."""
        late = self.late_logs
        if kept_by:
            return [sentence for path in directories for _, sentence in late.fetch_kept(path, kept_by)]
        return late.fetch(directories)

    @property
    def late_logs(self) -> LateLogs:
        """The logs that hosts still have after their rounds."""
        return LateLogs(self._allocation.pool_of, self._limits)

    def _fetch_missing_logs(self) -> None:
        """Fetch logs from lost hosts that are back; a round that still runs there is ended."""
        # A start that another one follows has been set aside; its logs are fetched at the end of the run.
        directories = [path for path in self._rounds_with_missing_logs if RoundDir(path).is_planned]
        self._rounds_with_missing_logs = []
        for line in self.fetch_late_logs(directories):
            note("line", text=line)
        self._rounds_with_missing_logs = [directory for directory in directories if RoundDir(directory).owes_logs]

    def _device_request(self, plan: Plan, directory: Path) -> DeviceRequest:
        run, tries = directory.parent.parent.name, len(earlier_tries(RoundDir(directory)))
        # The logs of an earlier start may still be on the host.
        start = f"{directory.name}-start{tries + 1}" if tries else directory.name
        return DeviceRequest(
            nnodes=plan.shape.nnodes,
            nproc=plan.case.nproc,
            devices_per_host=self._candidate_devices(plan),
            whole_host=self._lease(self._vendor(plan)) == "host",
            unfit=self._unfit,
            allowed=self._allocation.devices(plan),
            owner=device_lease.owner(run=run, case=str(plan.case)),
            name=f"{run}-{self._suffix}-{plan.case.folder}-{start}",
            directory=directory,
            lease_s=self._settings.lease_time,
            lease_here_s=self._settings.lease_time if self._settings.given("lease_time") else 0.0,
        )

    def _candidate_devices(self, plan: Plan) -> int | None:
        """Return the number of devices to choose from; None if unknown.

        A process that sees all devices of the host uses the first ones, so the round must lease these.
        """
        if self._sees_all(plan):
            return plan.case.nproc
        return self._vendor(plan).chip(plan.case.hardware).devices_per_host

    def _sees_all(self, plan: Plan) -> bool:
        """Return True if ranks see devices that their round has not leased. On CPUs, ranks are bound to their cores."""
        if plan.visible_devices or plan.devices_are_cores:
            return False
        request = self._environments.request_of(plan)
        return runtimes()[plan.runtime].sees_all_devices(request)

    def _round_options(self, plan: Plan, directory: Path) -> RoundOptions:
        suite, vendor = self._catalog.suite(plan.case.model, plan.case.framework), self._vendor(plan)
        return RoundOptions(
            monitors={
                "vendor": vendor.name,
                "device_every_s": self._settings.sample,
                **_device_source(vendor),
            },
            clear_caches=self._settings.clear_caches,
            labels={"flagperf.run": directory.parent.parent.name, "flagperf.case": str(plan.case)},
            # An installed package may lie inside the repository of another project.
            plan_entries={
                "checkout": {} if suite.root in self._catalog.packages else checkout(suite.root),
                **self._allocation.record(),
            },
            explain=self._explained,
            hidden=runs_beside(directory.absolute().parent.parent),
            bind=self._settings.bind == "auto",
            near=self._near,
        )


def _device_source(vendor: Vendor) -> dict[str, Any]:
    """Return how the vendor's devices are read: by NVML, or by the probe, a path in the deployed code."""
    probe = f"vendors/{vendor.name}/{vendor.probe.name}" if vendor.probe else None
    return {"nvml": vendor.toml.nvml, "probe": probe}


def check_system(*, only_other_hosts: bool) -> list[str]:
    """Return a warning if runs from this system are not tested; Problems if it cannot run rounds."""
    if sys.platform == "linux":
        return []
    name = _SYSTEMS.get(sys.platform, sys.platform)
    here = "--plan and the commands show, compare and report work here (docs/systems.md)"
    if sys.platform == "win32":
        raise Problems([f"rounds cannot be started on {name}: start the run on Linux; {here}"])
    if not only_other_hosts:
        raise Problems([f"rounds cannot run on {name}: pass --cluster with hosts that run Linux; {here}"])
    return [f"warning: this machine runs {name}; runs from it on other hosts are not tested (docs/systems.md)"]
