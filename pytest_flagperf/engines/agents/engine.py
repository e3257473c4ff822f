"""The engine whose rounds run under agents: one on each host, which are this machine or reached over SSH."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from flagperf_driver.node import lease
from flagperf_driver.node.agent import archive
from flagperf_driver.node.agent.archive import LogLimits
from pytest_flagperf.case import Case
from pytest_flagperf.catalog import REFERENCE, Catalog, Vendor
from pytest_flagperf.hosts import Host, HostError
from pytest_flagperf.hosts.conf import ClusterConf
from pytest_flagperf.hosts.fleet import Fleet, cluster_fleet, local_fleet
from pytest_flagperf.plan import Plan, describe
from pytest_flagperf.plan.checkout import checkout
from pytest_flagperf.problems import Problems
from pytest_flagperf.report.terminal.live import Live
from pytest_flagperf.runtime import EngineRequest, Interpreter, RuntimeSetupError, runtimes
from pytest_flagperf.settings import Settings
from pytest_flagperf.stored import FormatError, WriteError
from pytest_flagperf.stored.round import RoundDir

from . import acquire, preflight
from .agents import Agents, take_up
from .environments import Environments
from .late_logs import LateLogs
from .orders import RoundOptions
from .preflight import Data, Finding
from .round import follow_round, run_round

_log = logging.getLogger("flagperf.preflight")
_SHOWN = 8


class AgentsEngine:
    """Runs rounds on this machine or on SSH hosts, with an agent on each host; connects when it must, not before."""

    def __init__(self, settings: Settings, catalog: Catalog, cluster: ClusterConf | None) -> None:
        self._settings = settings
        self._catalog = catalog
        self._cluster = cluster
        self._environments = Environments(settings, catalog)
        self._owed: list[Path] = []  # rounds whose logs are not all here
        self._unfit: dict[str, set[int]] = {}
        self._near: dict[str, dict[int, Sequence[int]]] = {}
        # Of two runs that begin in the same second on two machines, each has its own folders on the hosts.
        self._mark = secrets.token_hex(4)

    @cached_property
    def _fleet(self) -> Fleet:
        return local_fleet() if self._cluster is None else cluster_fleet(self._cluster)

    @property
    def is_cluster(self) -> bool:
        """Whether hosts were named; else it is this machine."""
        return self._cluster is not None

    def header(self) -> list[str]:
        """Which hosts were named, and what of that has no effect."""
        if self._cluster is None:
            return []
        names = [address.name for address in self._cluster.addresses()]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return [
            f"  hosts: {', '.join(names[:_SHOWN])}{more}, over SSH ({self._cluster.source})",
            *(f"  note: {note}" for note in self._cluster.without_effect),
        ]

    @property
    def hosts(self) -> tuple[Host, ...]:
        return self._fleet.hosts

    @property
    def _limits(self) -> LogLimits:
        """How much of a round's logs a host may send."""
        conf = self._cluster or ClusterConf()
        return LogLimits(conf.max_log_gib * archive.GIB, conf.max_log_entries)

    def close(self) -> None:
        if "_fleet" in self.__dict__:
            self._fleet.close()

    # -- what will run ---------------------------------------------------------------------------------------

    def check(self, plan: Plan, vendor: Vendor) -> None:
        """Problems where the case cannot run as its vendor and the options say."""
        problems = runtimes()[plan.runtime].check(self._environments.request(plan.case, vendor, plan.runtime))
        if problems:
            raise Problems(problems)

    def notes(self, case: Case, vendor: Vendor, runtime: str) -> list[str]:
        """What a user may not expect of a case."""
        kind = runtimes()[runtime]
        notes = []
        if case.framework_version and not kind.uses_images:
            notes.append(
                f"{case}: the version picks a container's image; without containers (--runtime=docker) what the"
                " environment holds is run, and recorded"
            )
        return notes + kind.notes(self._environments.request(case, vendor, runtime), str(case))

    def describe(self, plan: Plan, vendor: Vendor, convergence: str = "", duration: Iterable[str] = ()) -> str:
        """Return what ``--plan`` prints of a case."""
        request = self._environments.request(plan.case, vendor, plan.runtime)
        lease = self._settings.lease or vendor.toml.lease
        return describe(plan, vendor, lease, request, convergence, duration, self.hosts)

    def interpreter(self, plan: Plan, vendor: Vendor, watch: Live) -> Interpreter:
        """The Python of the case's framework, ready on the first hosts that it may run on."""
        hosts = self._fleet.usable[: plan.case.nnodes]
        return self._environments.interpreters(plan, vendor, hosts, watch)[hosts[0].name]

    # -- before the first case -------------------------------------------------------------------------------

    def inspect(self, asked: Sequence[tuple[Plan, Vendor]]) -> list[Finding]:
        """Look at every host, for all cases of a vendor at once."""
        vendors = {vendor.name: vendor for _, vendor in asked}
        plans = {name: [plan for plan, vendor in asked if vendor.name == name] for name in vendors}
        return [
            finding
            for name, vendor in vendors.items()
            for finding in preflight.inspect(self.hosts, self._check_request(plans[name], vendor))
        ]

    def prepare(self, asked: Sequence[tuple[Plan, Vendor]]) -> list[str]:
        """Inspect, and leave unfit hosts and devices out; what to tell. Problems where too few are left."""
        findings = self.inspect(asked)
        for finding in findings:
            _log.info("%s: %s", finding.level, finding.sentence)
        fatal = preflight.sentences(findings)
        wanted = max((plan.case.nnodes for plan, _ in asked), default=0)
        for host in self.hosts:
            said = [finding.sentence for finding in findings if finding.host == host.name and finding.fatal]
            if said:
                self._fleet.lost(host, "; ".join(said))
        if len(self._fleet.usable) < wanted:
            raise Problems(fatal)
        self._unfit, self._near = preflight.unfit_devices(findings), preflight.near_devices(findings)
        left_out = [f"left out: {sentence}" for sentence in fatal]
        return left_out + [f"warning: {sentence}" for sentence in preflight.sentences(findings, preflight.WARN)]

    @property
    def left_out(self) -> dict[str, Any]:
        """What the others of a parallel run must know: hosts and devices that are not fit, and what is near which."""
        return {
            "hosts": dict(self._fleet.lost_hosts),
            "devices": {name: sorted(devices) for name, devices in self._unfit.items()},
            "near": self._near,
            "builds": self._environments.builds,
        }

    def leave_out(self, told: Mapping[str, Any]) -> None:
        """What another one of the same run found out."""
        for host in self.hosts:
            if host.name in told["hosts"]:
                self._fleet.lost(host, told["hosts"][host.name])
        self._unfit = {name: set(devices) for name, devices in told["devices"].items()}
        self._near = {name: {int(device): cpus for device, cpus in its.items()} for name, its in told["near"].items()}
        self._environments.builds = str(told["builds"])

    def _check_request(self, plans: Sequence[Plan], vendor: Vendor) -> preflight.Request:
        chip = vendor.chips.get(plans[0].case.hardware)
        engines = (self._engine_request(plan, vendor) for plan in plans)
        data = {Data(plan.data_dir, plan.manifest): None for plan in plans if plan.data_dir and _is_read(plan)}
        return preflight.Request(
            code=self._environments.code(plans[0], vendor),
            nnodes=max(plan.case.nnodes for plan in plans),
            nproc=max(plan.case.nproc for plan in plans),
            hardware=plans[0].case.hardware,
            chips={name: chip.names for name, chip in vendor.chips.items()},
            devices_per_host=chip.devices_per_host if chip else None,
            **_looked_at(vendor),
            engine=next(filter(None, engines), None),
            data=tuple(data),
            clear_caches=self._settings.clear_caches,
            folder=self._settings.reports,
        )

    def _engine_request(self, plan: Plan, vendor: Vendor) -> EngineRequest | None:
        """What a host must have for the case's containers; None without containers."""
        request = self._environments.request(plan.case, vendor, plan.runtime)
        try:
            return runtimes()[plan.runtime].engine(request)
        except RuntimeSetupError as error:
            raise Problems([f"case {plan.case}: {error}"]) from error

    # -- rounds ----------------------------------------------------------------------------------------------

    def run(
        self,
        plan: Plan,
        vendor: Vendor,
        number: int,
        directory: Path,
        watch: Live,
    ) -> None:
        """A round on hosts and devices that are free; its directory says how it ended."""
        request = self._host_request(plan, vendor, directory)
        self._settle_with_the_lost(watch)
        self._environments.build_ahead(plan, vendor, self._fleet, watch)
        end = None
        try:
            with Agents(watch.note, self._limits) as agents:
                acquire.acquire(
                    self._fleet,
                    self._environments.code(plan, vendor),
                    request,
                    agents,
                    lambda who: watch.note(_waits(plan, who)),
                )
                hosts = [agent.host for agent in agents.all]
                end = run_round(
                    plan,
                    number,
                    directory,
                    agents=agents,
                    interpreters=self._environments.interpreters(plan, vendor, hosts, watch),
                    listener=watch.progress,
                    options=self._round_options(plan, vendor, directory, watch),
                )
            self._owed += [directory] if end.missing else []
        except WriteError:
            raise
        except (HostError, lease.LeaseError, OSError) as error:
            raise Problems([f"case {plan.case}: {error}"]) from error
        finally:
            watch.clear()
            if end is None or end.fault:
                self._environments.forget()  # it may be why: an image or an environment that was removed meanwhile

    def resume(self, directory: Path, watch: Live, end_because: str | None = None) -> bool:
        """Take up a round that a controller left running, or end it; False where nothing of it runs any more.

        Of a round that does not run, the logs that hosts still have are fetched.
        """
        if self._take_up(directory, watch, end_because):
            return True
        self._late_logs.salvage(directory, watch.note)
        return False

    def _take_up(self, directory: Path, watch: Live, end_because: str | None) -> bool:
        try:
            placed = RoundDir(directory).read_hosts()
        except FormatError:
            return False
        hosts = [self._fleet.host(place.name) for place in placed]
        if None in hosts:
            return False
        lease_s = self._settings.lease_time
        try:
            with Agents(watch.note, self._limits) as agents:
                try:
                    for host, place in zip(filter(None, hosts), placed, strict=True):
                        agents.join(take_up(host, directory, place, lease_s))
                except HostError:
                    agents.dismiss(keep=[agent.name for agent in agents.all])  # their logs are still to be fetched
                    raise
                what = "ending it" if end_because else "going on with it"
                watch.note(f"{directory.parent.name} {directory.name} still runs: {what}")
                show = watch.log if watch.follow else None
                follow_round(directory, agents, watch.progress, show, end_because=end_because)
        except HostError:
            return False
        finally:
            watch.clear()
        return True

    def fetch_late_logs(self, directories: Sequence[Path]) -> list[str]:
        """Try again for the logs that hosts kept; a sentence for each that came, or still did not."""
        return self._late_logs.fetch(directories)

    @property
    def _late_logs(self) -> LateLogs:
        return LateLogs(self._fleet, self._limits)

    def _settle_with_the_lost(self, watch: Live) -> None:
        """A host that was lost may be back, and may still run a round that is over here: it is ended, its logs come."""
        owed, self._owed = self._owed, []
        for line in self.fetch_late_logs(owed):
            watch.note(line)
        self._owed = [directory for directory in owed if RoundDir(directory).owes_logs]

    def _host_request(self, plan: Plan, vendor: Vendor, directory: Path) -> acquire.Request:
        run = directory.parent.parent.name
        return acquire.Request(
            nnodes=plan.case.nnodes,
            nproc=plan.case.nproc,
            devices_per_host=self._choice_of_devices(plan, vendor),
            whole_host=(self._settings.lease or vendor.toml.lease) == "host",
            unfit=self._unfit,
            owner=lease.owner(run=run, case=str(plan.case)),
            name=f"{run}-{self._mark}-{plan.case.folder}-{directory.name}",
            directory=directory,
            lease_s=self._settings.lease_time,
            lease_here_s=self._settings.lease_time if self._settings.given("lease_time") else 0.0,
        )

    def _choice_of_devices(self, plan: Plan, vendor: Vendor) -> int | None:
        """Among how many: a process that sees all takes the first ones, whichever are its round's."""
        chip = vendor.chips.get(plan.case.hardware)
        if self._sees_all(plan, vendor):
            return plan.case.nproc
        return chip.devices_per_host if chip else None

    def _sees_all(self, plan: Plan, vendor: Vendor) -> bool:
        """Whether a rank sees devices that are not its round's; a core it is bound to."""
        if plan.visible_devices or plan.device == "cpu":
            return False
        request = self._environments.request(plan.case, vendor, plan.runtime)
        return runtimes()[plan.runtime].sees_all_devices(request)

    def _round_options(self, plan: Plan, vendor: Vendor, directory: Path, watch: Live) -> RoundOptions:
        suite = self._catalog.suite(plan.case.model, plan.case.framework)
        return RoundOptions(
            monitors={
                "vendor": vendor.name,
                "every_s": 1.0,
                "device_every_s": self._settings.sample,
                **_looked_at(vendor),
            },
            clear_caches=self._settings.clear_caches,
            labels={"flagperf.run": directory.parent.parent.name, "flagperf.case": str(plan.case)},
            show=watch.log if watch.follow else None,
            # What is around an installed package is another project's repository.
            told={"checkout": {} if suite.root in self._catalog.packages else checkout(suite.root)},
            bind=self._settings.bind == "auto",
            near=self._near,
        )


def _looked_at(vendor: Vendor) -> dict[str, Any]:
    """How the vendor's devices are looked at; a probe by its place in the code that the hosts get."""
    probe = f"vendors/{vendor.name}/{vendor.probe.name}" if vendor.probe else None
    return {"nvml": vendor.toml.nvml, "probe": probe}


def _is_read(plan: Plan) -> bool:
    """Whether the case reads data that must be there."""
    return plan.scale == REFERENCE and not plan.synthetic


def _waits(plan: Plan, who: str) -> str:
    return f"{plan.case} waits: {who}"
