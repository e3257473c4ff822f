"""The hosts of Slurm jobs: of the job that the run is in, or of one job for each case."""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_flagperf import stored
from pytest_flagperf.engines.agents.allocation import Allocation, LostHosts
from pytest_flagperf.hosts import Host, HostError
from pytest_flagperf.hosts.host_pool import SHOWN, HostPool, allow_descriptors, run_on_each
from pytest_flagperf.plan import Plan
from pytest_flagperf.problems import Problems, some
from pytest_flagperf.progress import note
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.layout import PLAN

from . import request
from .config import SlurmConfig
from .host import SlurmHost, hosts_of, wait_until_settled
from .jobs_and_nodes import (
    CANCELLED,
    RUNNING,
    Job,
    SlurmError,
    cancel,
    end_of,
    explain,
    lost_nodes,
    read_job,
    read_nodes,
    require_commands,
)

_log = logging.getLogger("flagperf.slurm")
JOB_ID = "SLURM_JOB_ID"
_RECORD = "slurm_job"
_SETTLE_S = 20.0


def slurm_allocation(conf: SlurmConfig, exclusive: Callable[[Plan], bool], lease_s: float) -> SlurmAllocation:
    """Return the job that this process runs in, or jobs for the cases. ``exclusive``: the case needs whole hosts."""
    number = os.environ.get(JOB_ID)
    return InsideJob(conf, number) if number else JobPerCase(conf, exclusive, lease_s)


class SlurmAllocation(Allocation):
    """Hosts of one job at a time."""

    _own: bool
    """Whether the run requests the jobs, and so ends them."""

    def __init__(self, conf: SlurmConfig) -> None:
        self._conf = conf
        self._job: Job | None = None
        self._lost: set[str] = set()  # nodes of the job, as ``explain`` has found
        self._others: list[tuple[Job, HostPool]] = []  # of stored rounds

    def devices(self, plan: Plan) -> Mapping[str, Sequence[int]]:
        """Return the job's devices as the node's programs number them, else as Slurm numbers them."""
        if plan.devices_are_cores:
            return {}  # a card is a core, and the kernel restricts these
        found = run_on_each(self.pool.hosts, lambda host: _devices(host, plan.visible_devices))
        return {host.name: devices for host, devices in found.items() if isinstance(devices, tuple)}

    def held_by(self) -> str:
        return f"job {self._job.number}" if self._job else ""

    def explain(self) -> LostHosts | None:
        """Return why the job does not run any more, or which node it has lost since the last question.

        A job that ends has no connections afterwards, and a lost node is not used again.
        """
        if self._job is None:
            return None
        try:
            if read_job(self._job.number).state != RUNNING:
                self._pool.close()  # the relays would wait for it
            now = wait_until_settled(self._job.number, _SETTLE_S)
            nodes = read_nodes(self._job.nodes)
        except SlurmError as error:
            _log.info("job %s: %s", self._job.number, error)
            return None
        if now.state != RUNNING or now.restarts > self._job.restarts:
            sentence = explain(self._job, now, nodes)
            return LostHosts(sentence, CANCELLED.lower() if end_of(now) == CANCELLED else "lost") if sentence else None
        lost = lost_nodes(self._job, now, nodes)
        for host in self._pool.hosts:
            if host.name in lost:
                self._pool.exclude(host, str(nodes[host.name]))
        new = [name for name in lost if name not in self._lost]
        self._lost.update(new)
        sentence = explain(self._job, now, {name: nodes[name] for name in new})
        return LostHosts(sentence, hosts=tuple(new)) if sentence and new else None

    def record(self) -> Mapping[str, Any]:
        return {_RECORD: self._job.number} if self._job else {}

    def pool_of(self, directory: Path) -> HostPool:
        """Return the hosts of the round's job; if it has ended, those of the present one.

        A node of both still has the logs of the round.
        """
        try:
            number = stored.read(directory / PLAN).get(_RECORD)
            if self._job is not None and self._job.number == number:
                return self._pool
            known = next((pool for job, pool in self._others if job.number == number), None)
            if known is not None:
                return known
            if not isinstance(number, str) or (found := read_job(number)).state != RUNNING:
                return self._pool
            self._others.append((found, self._connected(found)))
        except (FormatError, HostError):
            return self._pool
        return self._others[-1][1]

    def close(self) -> None:
        self.release()
        self._close_others()

    def _close_others(self) -> None:
        """Give back the jobs of rounds that another process started and this one followed."""
        for job, pool in self._others:
            pool.close()
            if self._own:
                cancel(job.number)
        self._others = []

    def _connected(self, job: Job, visible_devices: str | None = None) -> HostPool:
        report = [visible_devices] if visible_devices else []
        hosts = hosts_of(job, self._conf.python, own=self._own, report=report)
        allow_descriptors(len(hosts))
        return HostPool(hosts)


def _devices(host: Host, variable: str | None) -> tuple[int, ...] | None:
    """Return the devices of the job on a node; None if it has no devices as resources."""
    assert isinstance(host, SlurmHost)
    # If the node hides the other jobs' devices, its programs number the remaining ones from 0.
    numbered = host.variable(variable) if variable else None
    if numbered is not None and re.fullmatch(r"\d+(,\d+)*", numbered):
        return tuple(map(int, numbered.split(",")))
    return host.job.devices.get(host.name)


class InsideJob(SlurmAllocation):
    """The nodes of the job that the run is in: ``salloc`` or ``sbatch`` requested it, and Slurm or the user ends it."""

    _own = False

    def __init__(self, conf: SlurmConfig, number: str) -> None:
        super().__init__(conf)
        require_commands()
        self._number = number

    @cached_property
    def _found(self) -> Job:
        try:
            job = read_job(self._number)
        except SlurmError as error:
            raise Problems(
                [f"--cluster=slurm: {JOB_ID}={self._number}: {error}; unset {JOB_ID} to request a job for each case"]
            ) from error
        if job.state != RUNNING:
            raise Problems(
                [
                    f"--cluster=slurm: job {job.number} ({JOB_ID}) is {job.state}; expected a running job;"
                    f" unset {JOB_ID} to request a job for each case"
                ]
            )
        return job

    @property
    def host_count(self) -> int | None:
        return len(self._found.nodes)

    @property
    def pool(self) -> HostPool:
        if self._job is None:
            self._job = self._found
            self._pool = self._connected(self._job, self._variable)
        return self._pool

    _variable: str | None = None

    def header(self) -> list[str]:
        job = self._found
        limit = "no time limit" if job.time_limit == "UNLIMITED" else f"time limit {job.time_limit}"
        return [f"  hosts: {some(job.nodes, SHOWN)}, of Slurm job {job.number} (partition {job.partition}, {limit})"]

    def check(self, plans: Sequence[Plan]) -> None:
        """Remember which variable names the devices; the job has its nodes already."""
        self._variable = next((plan.visible_devices for plan in plans if plan.visible_devices), None)

    def close(self) -> None:
        super().close()
        self._pool.close()


class JobPerCase(SlurmAllocation):
    """One job for each case, held for all of its rounds."""

    _own = True

    def __init__(self, conf: SlurmConfig, exclusive: Callable[[Plan], bool], lease_s: float) -> None:
        super().__init__(conf)
        require_commands()
        self._exclusive = exclusive
        self._lease_s = lease_s
        self._case = ""
        self._submitted: str | None = None

    def header(self) -> list[str]:
        names = {"partition": self._conf.partition, "account": self._conf.account, "time limit": self._conf.time}
        given = "".join(f", {name} {value}" for name, value in names.items() if value)
        return [f"  hosts: of Slurm, one job for each case{given} ({self._conf.source})"]

    def check(self, plans: Sequence[Plan]) -> None:
        """Ask Slurm whether it would accept the jobs."""
        problems: dict[str, str] = {}
        asked: set[tuple[str, ...]] = set()
        for plan in plans:
            wanted = self._request(plan, "flagperf-check")
            key = tuple(wanted.arguments(self._conf))
            if key in asked:
                continue
            asked.add(key)
            try:
                request.check(self._conf, wanted)
            except SlurmError as error:
                problems.setdefault(str(error), str(plan.case))
        if problems:
            raise Problems([f"{problem} (case {case})" for problem, case in problems.items()])

    def obtain(self, plan: Plan, wait_s: float | None = None) -> bool:
        """Request a job for a case and wait for it, unless the case still has one with enough nodes.

        A start that must not wait gets the nodes that are left.
        """
        if self._job is not None and self._case == str(plan.case):
            loss, needed = self.explain(), 1 if wait_s == 0 else plan.shape.nnodes
            if (loss is None or loss.hosts) and len(self._pool.usable) >= needed:
                return False
        self.release()
        self._close_others()
        name = f"flagperf-{plan.case.folder}-{secrets.token_hex(4)}"
        wanted = self._request(plan, name, replaces=wait_s is not None)
        try:
            self._submitted = request.submit(self._conf, wanted)
            _log.info("job %s: requested for %s", self._submitted, plan.case)

            def show(state: str, changed: bool) -> None:
                text = f"{plan.case} waits: {state}"
                note("phase", text=text, lasting=True) if changed else note("activity", text=text)

            began = time.monotonic()
            self._job = request.wait_until_it_runs(self._submitted, show, wait_s)
            note("waited", seconds=time.monotonic() - began)
            self._pool, self._case = self._connected(self._job, plan.visible_devices), str(plan.case)
        except BaseException:
            self.release()
            raise
        finally:
            note("phase_end")
        note("line", text=f"{plan.case} has job {self._job.number} on {some(self._job.nodes, SHOWN)}")
        return True

    def release(self) -> None:
        pool, submitted = self._pool, self._submitted
        self._job, self._pool, self._lost, self._case, self._submitted = None, HostPool(()), set(), "", None
        pool.close()
        if submitted is not None:
            cancel(submitted)

    def _request(self, plan: Plan, name: str, *, replaces: bool = False) -> request.JobRequest:
        return request.JobRequest(
            name,
            plan.shape.nnodes,
            plan.case.nproc,
            accelerators=not plan.devices_are_cores,
            exclusive=self._exclusive(plan),
            replaces=replaces,
            lease_s=self._lease_s,
        )
