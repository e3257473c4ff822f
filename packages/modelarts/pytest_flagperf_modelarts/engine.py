"""The engine that runs each round as a training job of ModelArts, with the agents' code on its instances."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pytest_flagperf.case import Case
from pytest_flagperf.catalog import REFERENCE, Catalog, Vendor
from pytest_flagperf.engines import FAIL, OK, WARN, Finding
from pytest_flagperf.engines.agents.agents import Agents, Greeted, HostAgent
from pytest_flagperf.engines.agents.agents_engine import AgentsEngine, check_system
from pytest_flagperf.engines.agents.allocation import FixedHosts
from pytest_flagperf.engines.agents.preflight import sentences
from pytest_flagperf.engines.agents.run_round import run_round
from pytest_flagperf.hosts import Channel, HostError, Message
from pytest_flagperf.hosts.host_pool import HostPool
from pytest_flagperf.hosts.replies import CheckedChannel
from pytest_flagperf.plan import Plan
from pytest_flagperf.problems import Problems
from pytest_flagperf.progress import note
from pytest_flagperf.results import StoredRun
from pytest_flagperf.runtime import Interpreter
from pytest_flagperf.settings import Settings
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.layout import host_folder, round_folder
from pytest_flagperf.stored.round_dir import RoundDir

from . import DATA_DIR, ais_bench
from .account import open_cloud
from .cloud_job import Cloud, CloudJob, Submission, fetch_figures, log_file
from .config import ModelArtsConfig
from .data import data_problems
from .instances import InstanceHost
from .job import orders
from .jobs import TrainingJob, new_name
from .names import unresolved, use_addresses
from .original_files import exports
from .package import packages_of
from .stored_job import StoredJob, read_job

_PORTS = range(20000, 30000)
_END_S = 180.0  # a stopped job may need this long to end and to publish its logs
_SERVICE = "ModelArts"


@dataclass
class _Round:
    """A round that runs in a job, on some of its instances."""

    number: int
    directory: Path
    instances: range


class ModelArtsEngine(AgentsEngine):
    """Runs rounds as jobs. A round's instances are its hosts; the agents on them follow orders from a file."""

    def __init__(self, settings: Settings, catalog: Catalog, config: ModelArtsConfig) -> None:
        instances = (
            InstanceHost(number, self._open_channel, self._check_reachable) for number in range(config.instances)
        )
        super().__init__(settings, catalog, FixedHosts(pool=HostPool(tuple(instances))))
        self._config = config
        self._channels: dict[str, tuple[CloudJob, int]] = {}  # by the folder of an instance's logs
        self._beside: dict[Path, threading.Thread] = {}  # rounds that run in the job of another round
        use_addresses(config.addresses)

    @property
    def host_count(self) -> int:
        """The number of instances of one case."""
        return 1 if self._config.single_server else self._config.instances

    @cached_property
    def _cloud(self) -> Cloud:
        return open_cloud(self._config)

    def header(self) -> list[str]:
        conf = self._config
        where = conf.pool or conf.flavor
        mode = ", each training alone" if conf.single_server else ""
        count = f"{conf.instances} instance{'s' if conf.instances > 1 else ''}"
        return [
            f"  hosts: {count} of {conf.cards} cards in {where} of ModelArts{mode} ({conf.source})",
            *(f"  note: {note}" for note in conf.without_effect),
        ]

    # -- before anything starts ----------------------------------------------------------------------------

    def check(self, plan: Plan) -> None:
        """Raise Problems if the case cannot run as a job."""
        case, conf, problems = plan.case, self._config, []
        if plan.runtime != "host":
            problems.append(
                f"--runtime={plan.runtime}: a job runs in an image of ModelArts; set image in [engines.modelarts]"
            )
        if case.nproc > conf.cards:
            problems.append(f"needs {case.nproc} cards, and an instance has {conf.cards} (engines.modelarts.cards)")
        if case.nnodes > 1 and case.nproc != conf.cards:
            problems.append(
                f"several instances train together only with all their {conf.cards} cards (engines.modelarts.cards)"
            )
        if conf.data is None and plan.scale == REFERENCE and not plan.synthetic:
            problems.append(f"no training data: set data in [engines.modelarts] of {conf.source}, or pass --synthetic")
        if problems:
            raise Problems([f"case {case}: {problem}" for problem in problems])
        super().check(plan)

    def notes(self, case: Case, vendor: Vendor, runtime: str) -> list[str]:  # noqa: ARG002
        if not case.framework_version:
            return []
        return [f"{case}: the version has no effect; image or framework_version of the job selects the framework"]

    def interpreter(self, plan: Plan) -> Interpreter:
        raise Problems([f"case {plan.case}: the Python of its ranks is only in the image of ModelArts"])

    def inspect(self, plans: Sequence[Plan]) -> list[Finding]:
        """Check the addresses, the keys, the buckets, the service and the training data."""
        findings = list(self._inspect_endpoints())
        if any(finding.fatal for finding in findings):
            return findings
        conf = self._config
        for bucket in dict.fromkeys(folder.bucket for folder in (conf.code, conf.output, conf.data) if folder):
            findings.append(_finding("storage", f"bucket {bucket}", partial(self._cloud.obs.check_bucket, bucket)))
        findings.append(_finding("service", f"interface {conf.version}", self._cloud.jobs.check))
        packages = packages_of(conf)
        if packages:
            findings.append(Finding(_SERVICE, "packages", OK, f"{len(packages)} to install"))
        if not any(finding.fatal for finding in findings) and conf.data is not None:
            findings += self._inspect_data(plans)
        return findings

    def _inspect_endpoints(self) -> Iterator[Finding]:
        services = ("obs", "modelarts") if self._config.project else ("obs", "modelarts", "iam")
        for service in services:
            problem = unresolved(self._config.endpoint(service))
            if problem:
                yield Finding(_SERVICE, "network", FAIL, problem)

    def _inspect_data(self, plans: Sequence[Plan]) -> Iterator[Finding]:
        assert self._config.data is not None
        manifests = {plan.manifest: None for plan in plans if plan.scale == REFERENCE and not plan.synthetic}
        for manifest in manifests:
            try:
                problems = data_problems(self._cloud.obs, self._config.data, manifest)
            except HostError as error:
                problems = [str(error)]
            for problem in problems:
                yield Finding(_SERVICE, "data", FAIL, problem)
            if not problems:
                yield Finding(_SERVICE, "data", OK, f"{len(manifest)} parts in {self._config.data.url}")

    def prepare(self, plans: Sequence[Plan]) -> list[str]:
        """Raise Problems if the account, the storage or the data cannot be used; return warnings."""
        warnings = check_system(only_other_hosts=True)
        findings = self.inspect(plans)
        if fatal := sentences(findings):
            raise Problems(fatal)
        return warnings + [f"warning: {sentence}" for sentence in sentences(findings, WARN)]

    # -- rounds --------------------------------------------------------------------------------------------

    def run(self, plan: Plan, number: int, directory: Path, _: float | None) -> None:
        """Run a round as a job; with ``single_server`` the next rounds of the case run in the same job."""
        rounds = self._rounds_of_job(plan, number, directory)
        name = new_name(self._config)
        hosts = [self._pool.hosts[instance].name for one in rounds for instance in one.instances]
        job = CloudJob(self._cloud, name, hosts, together=not self._config.single_server)
        job.submit_with(self._submission(plan, job, rounds))
        for one in rounds[1:]:
            thread = threading.Thread(
                target=self._run_beside, args=(plan, one, job), name=f"round {one.number}", daemon=True
            )
            self._beside[one.directory] = thread
            thread.start()
        try:
            self._run_one(plan, rounds[0], job)
        except BaseException:
            if not job.is_followed:  # the rounds beside this one would wait for ever
                job.abort(f"round {number} of the same job did not start")
            raise
        finally:
            note("phase_end")

    def _rounds_of_job(self, plan: Plan, number: int, directory: Path) -> list[_Round]:
        if not self._config.single_server:
            return [_Round(number, directory, range(plan.shape.nnodes))]
        numbers = [number]
        if directory.name == round_folder(number):
            last = min(plan.case.repeat, number + self._config.instances - 1)
            following = range(number + 1, last + 1)
            numbers += [one for one in following if not RoundDir(directory.with_name(round_folder(one))).is_planned]
        return [
            _Round(one, directory if one == number else directory.with_name(round_folder(one)), range(at, at + 1))
            for at, one in enumerate(numbers)
        ]

    def _run_beside(self, plan: Plan, one: _Round, job: CloudJob) -> None:
        try:
            self._run_one(plan, one, job, is_noted=False)
        except Exception as error:
            job.abort(f"round {one.number}: {type(error).__name__}: {error}")

    def _run_one(self, plan: Plan, one: _Round, job: CloudJob, *, is_noted: bool = True) -> None:
        """Run one round on its instances of the job; its directory records how it ended."""
        directory = one.directory.absolute()
        directory.mkdir(parents=True, exist_ok=True)
        port, devices = random.choice(_PORTS), range(plan.case.nproc)
        with Agents(self._limits, is_noted=is_noted) as agents:
            for noderank, instance in enumerate(one.instances):
                host = self._pool.hosts[instance]
                log_dir = f"{job.output.path}{host_folder(host.name, noderank)}"
                self._channels[log_dir] = job, instance
                agents.join(
                    HostAgent(
                        host,
                        noderank,
                        directory,
                        CheckedChannel(host.name, job.channels[instance]),
                        self._settings.lease_time,
                        state=Greeted(log_dir, self._config.code.path.rstrip("/"), port=port).lease(devices),
                        end_s=_END_S,
                    )
                )
            end = run_round(
                plan,
                one.number,
                directory,
                agents=agents,
                interpreters={agent.name: self._interpreter(plan) for agent in agents.all},
                options=self._round_options(plan, directory),
            )
        self._rounds_with_missing_logs += [directory] if end.missing else []
        self._fetch_figures(job, one.instances[0], directory)

    def _fetch_figures(self, job: CloudJob, first: int, directory: Path) -> None:
        """Copy ais-bench's files of a round, whose first instance is ``first``, into its directory."""
        try:
            server = first if self._config.single_server else None
            problems = fetch_figures(self._cloud, job.output, directory, server)
        except HostError as error:
            problems = [str(error)]
        for problem in problems:
            note("line", text=f"{RoundDir(directory).label}: {problem}")

    def _interpreter(self, plan: Plan) -> Interpreter:
        """Return the Python of the image, with the variables that the vendor sets."""
        request = self._environments.request_of(plan)
        problems: list[str] = []
        own = exports(request.environment_file, problems) if request.environment_file else {}
        if problems:
            raise Problems(problems)
        conf = self._config
        label = conf.image or f"{conf.framework} {conf.framework_version}"
        return Interpreter("python3", {**dict(request.environment), **own}, f"{_SERVICE}: {label}", {"image": label})

    def _submission(self, plan: Plan, job: CloudJob, rounds: Sequence[_Round]) -> Submission:
        def on_submitted(submitted: TrainingJob) -> None:
            for one in rounds:
                for instance in one.instances:
                    job.channels[instance].log_file = log_file(one.directory, submitted, self._config, instance)
                stored = StoredJob(
                    job.name,
                    submitted.id,
                    submitted.name,
                    submitted.version,
                    submitted.resource,
                    tuple(one.instances),
                    len(job.channels),
                )
                stored.write(one.directory)

        limit = plan.config.get("round_timeout_s")
        return Submission(
            code=self._environments.code(plan),
            nproc=plan.case.nproc,
            translate={
                instance: self._translation(plan, job, noderank, instance, one)
                for one in rounds
                for noderank, instance in enumerate(one.instances)
            },
            hours=math.ceil(float(limit) / 3600) + 1 if isinstance(limit, (int, float)) else None,
            on_submitted=on_submitted,
        )

    def _translation(
        self, plan: Plan, job: CloudJob, noderank: int, instance: int, one: _Round
    ) -> Callable[[Message], Message]:
        """Return the function that replaces what only the instance knows by placeholders."""
        hosts = [self._pool.hosts[number] for number in one.instances]
        values = {
            f"{job.output.path}{host_folder(self._pool.hosts[instance].name, noderank)}": orders.LOGS,
            self._config.code.path.rstrip("/") + "/": f"{orders.CODE}/",
            **{host.address: orders.host(number) for number, host in enumerate(hosts)},
            **({DATA_DIR: orders.DATA} if self._config.data else {}),
        }

        def translate(order: Message) -> Message:
            filled: dict[str, Any] = orders.filled(dict(order), values)
            for rank in filled["ranks"]:
                rank["argv"][0] = orders.PYTHON
                rank["env"]["PYTHONPATH"] = f"{orders.CODE}:{orders.CODE}/suites"
                if not plan.devices_are_cores:
                    rank["env"]["OMP_NUM_THREADS"] = orders.THREADS
            return filled

        return translate

    # -- rounds of other controllers, and late logs --------------------------------------------------------

    def resume(self, directory: Path, end_because: str | None = None) -> bool:
        """Resume a round whose job still runs, or end the job; wait for a round in the job of another round."""
        thread = self._beside.pop(directory, None)
        if thread is not None:
            thread.join()
            return True
        self._adopt(directory)
        if not super().resume(directory, end_because):
            return False
        job, first = self._channels[RoundDir(directory).read_hosts()[0].log_dir]
        self._fetch_figures(job, first, directory)
        return True

    def fetch_late_logs(self, directories: Sequence[Path], kept_by: Collection[str] = ()) -> list[str]:
        for directory in directories:
            self._adopt(directory)
        return super().fetch_late_logs(directories, kept_by)

    def _adopt(self, directory: Path) -> None:
        """Follow the job of a round that this engine does not follow."""
        try:
            places, stored = RoundDir(directory).read_hosts(), read_job(directory)
        except FormatError:
            return
        known = [self._channels[place.log_dir][0] for place in places if place.log_dir in self._channels]
        if any(job.is_followed or job.is_finished for job in known):
            return
        names = [f"instance{number}" for number in range(stored.of)]
        job = CloudJob(self._cloud, stored.name, names, together=not self._config.single_server)
        submitted = TrainingJob(stored.id, stored.job_name, stored.version, stored.resource)
        for place, instance in zip(places, stored.instances, strict=False):
            self._channels[place.log_dir] = job, instance
            job.channels[instance].log_file = log_file(directory, submitted, self._config, instance)
        job.follow(submitted)

    def _open_channel(self, log_dir: str) -> Channel:
        if log_dir not in self._channels:
            raise HostError(f"no job is known for {log_dir}")
        job, instance = self._channels[log_dir]
        return job.reopened(instance)

    def _check_reachable(self) -> None:
        for job in {job for job, _ in self._channels.values()}:
            if job.lost is not None:
                raise HostError(job.lost)

    def finish(self, results: StoredRun) -> list[str]:
        """Write each case's results in the form of ais-bench; return the lines of its report."""
        return ais_bench.write_results(results.directory, results.cases)

    def close(self) -> None:
        for thread in self._beside.values():
            thread.join(_END_S)
        super().close()


def _finding(kind: str, what: str, check: Callable[[], None]) -> Finding:
    try:
        check()
    except HostError as error:
        return Finding(_SERVICE, kind, FAIL, str(error))
    return Finding(_SERVICE, kind, OK, what)
