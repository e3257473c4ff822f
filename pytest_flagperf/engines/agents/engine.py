"""The hosts of a run, and what is done there for a case: code, environments, rounds, and the logs' way back."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from flagperf_driver.node import engine, lease
from flagperf_driver.node.agent import archive
from flagperf_driver.node.agent.archive import Limits
from pytest_flagperf.case import Case
from pytest_flagperf.catalog import REFERENCE, Catalog, Vendor
from pytest_flagperf.hosts import Host, HostError
from pytest_flagperf.hosts.conf import ClusterConf
from pytest_flagperf.hosts.deploy import Code, pack
from pytest_flagperf.hosts.fleet import Fleet, cluster_fleet, each, local_fleet
from pytest_flagperf.plan import Plan
from pytest_flagperf.plan.checkout import checkout
from pytest_flagperf.problems import Problems
from pytest_flagperf.report.terminal.live import Live
from pytest_flagperf.runtime import (
    BuildFailed,
    Image,
    Interpreter,
    RuntimeSetupError,
    Wanted,
    runtimes,
)
from pytest_flagperf.runtime.docker import images as docker_images
from pytest_flagperf.runtime.docker import options as docker_options
from pytest_flagperf.settings import Settings
from pytest_flagperf.stored import FormatError, WriteError

from . import preflight
from .acquire import Needs, muster
from .agents import Crew, take_up
from .collect import Gone, fetch
from .orders import Wishes, read_places, read_plan
from .preflight import Data, Finding, Wants
from .round import follow_round, missing_logs, run_round, write_missing
from .unpack import TooMuch

_SHOWN = 8
_LASTING = ("building", "another", "pulling", "warning:")


class _NotReady(HostError):
    """A host that answers has no Python for the ranks."""


class Venue:
    """Connects to a host when it is first needed."""

    def __init__(self, settings: Settings, catalog: Catalog, cluster: ClusterConf | None) -> None:
        self._settings = settings
        self._catalog = catalog
        self._cluster = cluster
        self._codes: dict[tuple[str, str], Code] = {}
        self._ready: dict[tuple[str, str, Wanted], Interpreter] = {}  # by host and runtime; looked at once a run
        self._failed: dict[tuple[str, str, Wanted], BuildFailed] = {}  # builds that failed, likewise
        self._owed: list[Path] = []  # rounds whose logs are not all here
        self._unfit: dict[str, set[int]] = {}
        self._near: dict[str, dict[int, Sequence[int]]] = {}
        # Of two runs that begin in the same second on two machines, each has its own folders on the hosts.
        self._mark = secrets.token_hex(4)
        self._builds = secrets.token_hex(8)  # the same for all workers of a run

    @cached_property
    def fleet(self) -> Fleet:
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
        return self.fleet.hosts

    @property
    def _limits(self) -> Limits:
        """How much of a round's logs a host may send."""
        conf = self._cluster or ClusterConf()
        return Limits(conf.max_log_gib * archive.GIB, conf.max_log_entries)

    @property
    def _by_name(self) -> dict[str, Host]:
        return {host.name: host for host in self.hosts}

    def close(self) -> None:
        if "fleet" in self.__dict__:
            self.fleet.close()

    # -- what a host is given --------------------------------------------------------------------------------

    def code(self, plan: Plan, vendor: Vendor) -> Code:
        """What of the suites and the vendors goes to the hosts, by the name it has there."""
        suite = self._catalog.suite(plan.case.model, plan.case.framework)
        key = suite.name, vendor.name
        if key not in self._codes:
            trees = {f"suites/{plan.case.model}": suite.path.parent, f"vendors/{vendor.name}": vendor.path}
            own = self._catalog.case_folder(suite, vendor)
            if own.is_dir():
                trees[f"vendors/{vendor.name}/{suite.folder}"] = own
            shared = suite.root / "suites" / "common"
            try:
                self._codes[key] = pack(trees | ({"suites/common": shared} if shared.is_dir() else {}))
            except OSError as error:
                raise Problems([f"{error.filename}: {error.strerror}; all of that folder goes to the hosts"]) from error
        return self._codes[key]

    def interpreters(self, plan: Plan, vendor: Vendor, hosts: Sequence[Host], watch: Live) -> dict[str, Interpreter]:
        """The Python of the case's framework on each host; Problems where it cannot be made ready."""
        made = self._make_ready(plan, vendor, hosts, watch)
        wrong = [str(answer) for answer in made.values() if isinstance(answer, HostError)]
        if wrong:
            raise Problems(dict.fromkeys(wrong))
        return {host.name: answer for host, answer in made.items() if isinstance(answer, Interpreter)}

    def build_ahead(self, plan: Plan, vendor: Vendor, watch: Live) -> None:
        """Make the Python of the case's framework ready wherever the case may run, before it waits for devices.

        Problems where too few hosts have it. With enough others, a host whose build failed is left out of the run.
        """
        made = self._make_ready(plan, vendor, self.fleet.usable, watch)
        # A host that does not answer is dealt with where devices are taken.
        wrong = {host: answer for host, answer in made.items() if isinstance(answer, _NotReady)}
        if wrong and len(made) - len(wrong) < plan.case.nnodes:
            raise Problems(dict.fromkeys(map(str, wrong.values())))
        for host, error in wrong.items():
            if isinstance(error.__cause__, BuildFailed):
                self.fleet.lost(host, str(error))
                watch.note(f"left out: {error}")

    def _make_ready(
        self, plan: Plan, vendor: Vendor, hosts: Sequence[Host], watch: Live
    ) -> Mapping[Host, Interpreter | HostError]:
        """Make it ready on all hosts at once; ready hosts and builds that failed are remembered."""
        wanted, code = self._wanted(plan, vendor), self.code(plan, vendor)
        prepare = runtimes()[plan.runtime]

        def on(host: Host) -> Interpreter:
            key = host.name, plan.runtime, wanted
            if key in self._failed:
                raise _NotReady(str(self._failed[key])) from self._failed[key]
            if key not in self._ready:
                try:
                    self._ready[key] = prepare(host, wanted, lambda text: _tell(watch, host, text, len(hosts)), code)
                except RuntimeSetupError as error:
                    if isinstance(error, BuildFailed):
                        self._failed[key] = error
                    raise _NotReady(str(error)) from error
            return self._ready[key]

        try:
            return each(hosts, on)
        finally:
            watch.clear()

    def _wanted(self, plan: Plan, vendor: Vendor) -> Wanted:
        settings, case = self._settings, plan.case
        own = self._catalog.case_folder(self._catalog.suite(case.model, case.framework), vendor)
        files = (*requirements(self._catalog, case.framework_name, vendor), own / "config" / "requirements.txt")
        environment = own / "config" / "environment_variables.sh"
        return Wanted(
            case.framework_name,
            tuple(file for file in files if file.is_file()),
            python=settings.python if plan.runtime == "host" else None,
            pip_source=settings.pip_source,
            uv_settings=tuple(vendor.toml.uv.items()),
            run=self._builds,
            environment=tuple(vendor.environment.items()),
            environment_file=environment if environment.is_file() else None,
            image=self.image(plan, vendor) if plan.runtime == "docker" else None,
        )

    def image(self, plan: Plan, vendor: Vendor) -> Image:
        """What the case's container is made of: what was asked for, else what the vendor says."""
        said, theirs = vendor.toml.container, vendor.image(plan.case.framework)
        own = self._catalog.case_folder(self._catalog.suite(plan.case.model, plan.case.framework), vendor)
        given = self._settings.image
        return Image(
            image=given or (theirs.name if theirs else None),
            image_by=self._settings.told("image") if given else theirs.by if theirs else "",
            folder=theirs.folder if theirs and not given else None,
            extras=own if own.is_dir() else None,
            options=(*said.options, *self._container_options()),
            options_by=self._told_options(vendor),
            shm_size=self._settings.shm_size or said.shm_size,
            privileged_by=f"vendors/{vendor.name}/vendor.toml" if "--privileged" in said.options else None,
        )

    def _container_options(self) -> list[str]:
        """The words of all options that were given, as a shell would see them."""
        try:
            return [word for text in self._settings.container_opt for word in shlex.split(text)]
        except ValueError as error:
            raise Problems([f"{self._settings.told('container_opt')}: {error}"]) from error

    def _told_options(self, vendor: Vendor) -> str:
        """Who gave the container's options, for messages."""
        given = [self._settings.told("container_opt")] if self._settings.container_opt else []
        return " and ".join(
            [*given, *([f"vendors/{vendor.name}/vendor.toml"] if vendor.toml.container.options else [])]
        )

    def check_container(self, plan: Plan, vendor: Vendor) -> None:
        """Problems where the options of the case's container cannot be followed."""
        image = self.image(plan, vendor)
        try:
            docker_options.parse(image.options, image.options_by)
            docker_options.size(image.shm_size or docker_options.SHM_SIZE)
        except docker_options.OptionsError as error:
            raise Problems(error.problems) from error
        except ValueError as error:
            raise Problems([f"{self._settings.told('shm_size')}: {error}"]) from error
        if image.image is None and image.folder is None:
            place, framework = f"vendors/{vendor.name}", plan.case.framework
            raise Problems(
                [
                    f"no container image: {place}/images/{framework}/Dockerfile is not there; write it, or name one"
                    f" with --image or in [images] of {place}/vendor.toml"
                ]
            )

    def check_extension(self, plan: Plan, vendor: Vendor) -> None:
        """A Problem where the case has an extension that nobody would build."""
        folder = self._extension(plan.case.model, plan.case.framework, vendor)
        if folder is None:
            return
        name = f"vendors/{vendor.name}/{folder.parent.name}/csrc"
        if not docker_images.is_buildable(folder):
            raise Problems([f"{name} has neither setup.py nor pyproject.toml: nothing of it would be built; add one"])
        if plan.runtime == "venv":
            raise Problems(
                [
                    f"{name} is built into images only, and --runtime=venv has none: give --runtime=docker, or"
                    " --runtime=host and a Python that has it"
                ]
            )

    def notes(self, case: Case, vendor: Vendor, runtime: str) -> list[str]:
        """What the vendor has for containers, and this case will not use."""
        if runtime == "docker":
            frameworks = {framework for _, framework in self._catalog.suites}
            return [] if self._settings.image else vendor.unused_images(case.framework, frameworks)
        folder = self._extension(case.model, case.framework, vendor) if runtime == "host" else None
        if folder is None:
            return []
        name = f"vendors/{vendor.name}/{folder.parent.name}/csrc"
        return [f"{case}: {name} is built into images only; with --runtime=host the Python at hand must have it"]

    def _extension(self, model: str, framework: str, vendor: Vendor) -> Path | None:
        """What a case's ranks want built, in C++ most likely."""
        folder = self._catalog.case_folder(self._catalog.suite(model, framework), vendor) / "csrc"
        return folder if folder.is_dir() else None

    # -- before the first case -------------------------------------------------------------------------------

    def inspect(self, asked: Sequence[tuple[Plan, Vendor]]) -> list[Finding]:
        """Look at every host, for all cases of a vendor at once."""
        vendors = {vendor.name: vendor for _, vendor in asked}
        plans = {name: [plan for plan, vendor in asked if vendor.name == name] for name in vendors}
        return [
            finding
            for name, vendor in vendors.items()
            for finding in preflight.inspect(self.hosts, self._wants(plans[name], vendor))
        ]

    def prepare(self, asked: Sequence[tuple[Plan, Vendor]]) -> list[str]:
        """Inspect, and leave unfit hosts and devices out; what to tell. Problems where too few are left."""
        findings = self.inspect(asked)
        fatal = preflight.sentences(findings)
        wanted = max((plan.case.nnodes for plan, _ in asked), default=0)
        for host in self.hosts:
            said = [finding.sentence for finding in findings if finding.host == host.name and finding.fatal]
            if said:
                self.fleet.lost(host, "; ".join(said))
        if len(self.fleet.usable) < wanted:
            raise Problems(fatal)
        self._unfit, self._near = preflight.unfit_devices(findings), preflight.near_devices(findings)
        left_out = [f"left out: {sentence}" for sentence in fatal]
        return left_out + [f"warning: {sentence}" for sentence in preflight.sentences(findings, preflight.WARN)]

    @property
    def left_out(self) -> dict[str, Any]:
        """What the others of a parallel run must know: hosts and devices that are not fit, and what is near which."""
        return {
            "hosts": dict(self.fleet.lost_hosts),
            "devices": {name: sorted(devices) for name, devices in self._unfit.items()},
            "near": self._near,
            "builds": self._builds,
        }

    def leave_out(self, told: Mapping[str, Any]) -> None:
        """What another one of the same run found out."""
        for host in self.hosts:
            if host.name in told["hosts"]:
                self.fleet.lost(host, told["hosts"][host.name])
        self._unfit = {name: set(devices) for name, devices in told["devices"].items()}
        self._near = {name: {int(device): cpus for device, cpus in its.items()} for name, its in told["near"].items()}
        self._builds = str(told["builds"])

    def _wants(self, plans: Sequence[Plan], vendor: Vendor) -> Wants:
        chip = vendor.chips.get(plans[0].case.hardware)
        in_containers = [plan for plan in plans if plan.runtime == "docker"]
        image, ours = self._image_of(in_containers[0], vendor) if in_containers else (None, False)
        data = {Data(plan.data_dir, plan.manifest): None for plan in plans if plan.data_dir and _is_read(plan)}
        return Wants(
            code=self.code(plans[0], vendor),
            nnodes=max(plan.case.nnodes for plan in plans),
            nproc=max(plan.case.nproc for plan in plans),
            hardware=plans[0].case.hardware,
            chips={name: chip.names for name, chip in vendor.chips.items()},
            devices_per_host=chip.devices_per_host if chip else None,
            **_looked_at(vendor),
            docker=engine.SOCKET if in_containers else None,
            image=image,
            image_is_ours=ours,
            data=tuple(data),
            clear_caches=self._settings.clear_caches,
            folder=self._settings.reports,
        )

    def _image_of(self, plan: Plan, vendor: Vendor) -> tuple[str, bool]:
        """The name of the image that a case's container is made of, and whether it is built here from its files."""
        wanted = self._wanted(plan, vendor)
        try:
            return docker_images.image_name(wanted), wanted.image is None or wanted.image.image is None
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
        needs = self._needs(plan, vendor, directory)
        self._settle_with_the_lost(watch)
        self.build_ahead(plan, vendor, watch)
        end = None
        try:
            with Crew(watch.note, self._limits) as crew:
                muster(self.fleet, self.code(plan, vendor), needs, crew, lambda who: watch.note(_waits(plan, who)))
                hosts = [agent.host for agent in crew.agents]
                end = run_round(
                    plan,
                    number,
                    directory,
                    crew=crew,
                    interpreters=self.interpreters(plan, vendor, hosts, watch),
                    listener=watch.progress,
                    wishes=self._wishes(plan, vendor, directory, watch),
                )
            self._owed += [directory] if end.missing else []
        except WriteError:
            raise
        except (HostError, lease.LeaseError, OSError) as error:
            raise Problems([f"case {plan.case}: {error}"]) from error
        finally:
            watch.clear()
            if end is None or end.fault:
                self._ready.clear()  # it may be why: an image or an environment that was removed meanwhile

    def go_on(self, directory: Path, watch: Live, end_because: str | None = None) -> bool:
        """Take up a round that a controller left running, or end it; False where nothing of it runs any more."""
        by_name = self._by_name
        try:
            placed = read_plan(directory)["hosts"]
        except FormatError:
            return False
        if not all(place["name"] in by_name for place in placed):
            return False
        lease_s = self._settings.lease_time
        try:
            with Crew(watch.note, self._limits) as crew:
                try:
                    for place in placed:
                        crew.join(take_up(by_name[place["name"]], place["noderank"], directory, place, lease_s))
                except HostError:
                    crew.dismiss(keep=[agent.name for agent in crew.agents])  # their logs are still to be fetched
                    raise
                what = "ending it" if end_because else "going on with it"
                watch.note(f"{directory.parent.name} {directory.name} still runs: {what}")
                show = watch.log if watch.follow else None
                follow_round(directory, crew, watch.progress, show, end_because=end_because)
        except HostError:
            return False
        finally:
            watch.clear()
        return True

    def salvage(self, directory: Path, watch: Live) -> None:
        """Fetch what hosts still have of a round that nobody will go on with; a host that has nothing is named."""
        where = f"{directory.parent.name} {directory.name}"
        try:
            places = read_places(directory)
        except FormatError as error:
            watch.note(f"{where}: logs that are still on other hosts are not fetched: {error}")
            return
        for placed in places:
            host = self._by_name.get(placed["name"])
            if host is not None and not host.here:
                try:
                    self._fetch(directory, {**placed, "host": placed["name"]})
                except (HostError, OSError) as error:
                    watch.note(f"{where}: the logs of {host.name} are missing here: {error}")

    def fetch_missing(self, directories: Sequence[Path]) -> list[str]:
        """Try again for the logs that hosts kept; a sentence for each that came, or still did not."""
        told, dead = [], dict[str, str]()
        for directory in directories:
            try:
                told += self._fetch_missing_of(directory, dead)
            except (FormatError, WriteError) as error:
                told.append(f"{directory.parent.name} {directory.name}: {error}")
        return told

    def _fetch_missing_of(self, directory: Path, dead: dict[str, str]) -> list[str]:
        """One round's; ``dead`` has the hosts that did not answer, and why."""
        told, still, warnings = [], [], list[str]()
        for missing in missing_logs(directory):
            name = missing["host"]
            if missing.get("gone"):
                still.append(missing)
                continue
            try:
                if name in dead:
                    raise HostError(dead[name])
                warnings += [f"{name}: {sentence}" for sentence in self._fetch(directory, missing)]
                how = "came late, and are here"
            except Gone as error:
                how = f"are gone: {error}"
                still.append({**missing, "why": str(error), "gone": True})
            except (HostError, OSError) as error:
                if not isinstance(error, TooMuch):
                    dead[name] = str(error)
                how = f"are missing here: {error}"
                still.append({**missing, "why": str(error)})
            told.append(f"{directory.parent.name} {directory.name}: the logs of {name} {how}")
        write_missing(directory, still, warnings)
        return told

    def _fetch(self, directory: Path, missing: Mapping[str, Any]) -> tuple[str, ...]:
        """Bring them here; a host that does not answer is not asked to run anything. What of them was left out."""
        host = self._by_name.get(missing["host"])
        if host is None:
            raise HostError("it is none of the hosts of this run")
        try:
            host.reconnect()
        except HostError as error:
            self.fleet.lost(host, str(error))
            raise
        self.fleet.found(host)
        folder = directory / f"{host.name}_noderank{missing['noderank']}"
        return fetch(host, pack({}), missing["log_dir"], folder, self._limits)

    def _settle_with_the_lost(self, watch: Live) -> None:
        """A host that was lost may be back, and may still run a round that is over here: it is ended, its logs come."""
        owed, self._owed = self._owed, []
        for line in self.fetch_missing(owed):
            watch.note(line)
        self._owed = [directory for directory in owed if is_owed(directory)]

    def _needs(self, plan: Plan, vendor: Vendor, directory: Path) -> Needs:
        run = directory.parent.parent.name
        return Needs(
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
        image = self.image(plan, vendor)
        return plan.runtime != "docker" or not docker_options.parse(image.options, image.options_by).only_leased

    def _wishes(self, plan: Plan, vendor: Vendor, directory: Path, watch: Live) -> Wishes:
        suite = self._catalog.suite(plan.case.model, plan.case.framework)
        return Wishes(
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


def is_owed(directory: Path) -> bool:
    """Whether a host still has logs of this round that are not here."""
    try:
        return any(not missing.get("gone") for missing in missing_logs(directory))
    except FormatError:
        return False


def requirements(catalog: Catalog, framework: str, vendor: Vendor | None) -> tuple[Path, ...]:
    """What the one environment of a framework is made of: what each of its suites says, and the vendor's own."""
    folders = [suite.path for (_, name), suite in sorted(catalog.suites.items()) if name == framework]
    if vendor is not None:
        folders.append(vendor.path / "images" / framework)
    return tuple(file for folder in folders if (file := folder / "requirements.txt").is_file())


def _looked_at(vendor: Vendor) -> dict[str, Any]:
    """How the vendor's devices are looked at; a probe by its place in the code that the hosts get."""
    probe = f"vendors/{vendor.name}/{vendor.probe.name}" if vendor.probe else None
    return {"nvml": vendor.toml.nvml, "probe": probe}


def _is_read(plan: Plan) -> bool:
    """Whether the case reads data that must be there."""
    return plan.scale == REFERENCE and not plan.synthetic


def _tell(watch: Live, host: Host, text: str, hosts: int) -> None:
    """That an environment is built is worth a line that stays; its hundred steps are not."""
    said = f"{host.name}: {text}" if hosts > 1 or not host.here else text
    (watch.note if text.startswith(_LASTING) else watch.passing)(said)


def _waits(plan: Plan, who: str) -> str:
    return f"{plan.case} waits: {who}"
