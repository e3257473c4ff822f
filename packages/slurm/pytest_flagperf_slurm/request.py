"""Jobs that a run requests: submitted as a batch script that holds the nodes until no controller uses them."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_flagperf.hosts import HostError

from .config import SlurmConfig
from .jobs_and_nodes import (
    PENDING,
    RUNNING,
    Job,
    SlurmError,
    cancel,
    cancel_by_name,
    read_job,
    read_nodes,
    read_partitions,
    run,
)

_RELAY = Path(__file__).with_name("relay.py").read_text("utf-8")
_MOST_IDLE_S, _LEAST_IDLE_S = 60.0, 10.0  # an unused job ends after this time
_TO_START_S = 60.0  # Slurm looks for free nodes twice a minute
_LEAST_POLL_S, _MOST_POLL_S = 0.3, 3.0
# Also the answer while nodes are drained; a request that no node fits is refused when it is submitted.
_NOT_NOW = ("node configuration is not available", "temporarily unavailable", "queue full")
_CHECK_S, _SUBMIT_S = 10.0, 30.0  # sbatch itself tries again for as long as the queue is full
_STARTING = ("CONFIGURING", "STAGE_OUT")
# Reasons with which a job never starts.
_HOPELESS = (
    "AccountNotAllowed", "BadConstraints", "InvalidAccount", "InvalidQOS", "PartitionConfig",
    "PartitionNodeLimit", "PartitionTimeLimit", "QOSNotAllowed", "DependencyNeverSatisfied",
)  # fmt: skip
# Reasons that nodes which are down or drained may cause.
_NODES_LACK = ("Nodes_required", "ReqNodeNotAvail", "Resources", "PartitionDown", "PartitionInactive")


@dataclass(frozen=True)
class JobRequest:
    """The nodes and devices of one case."""

    name: str  # unique among all jobs of the user
    nnodes: int
    nproc: int
    accelerators: bool  # False: the cards are cores
    exclusive: bool
    replaces: bool = False  # another job, whose nodes may be down: it takes as many spares as are free
    lease_s: float = _MOST_IDLE_S  # how long ranks continue without the controller

    def arguments(self, conf: SlurmConfig) -> list[str]:
        """Return the options of sbatch."""
        options = [option.partition("=")[0] for option in conf.options]
        words = [
            f"--job-name={self.name}",
            f"--nodes={f'{self.nnodes}-' if self.replaces else ''}{self.nnodes + conf.spares}",
            "--ntasks-per-node=1",
            "--chdir=/",
            "--output=/dev/null",
            "--no-requeue",
        ]
        if self.accelerators and not any(option.startswith(("--gres", "--gpus", "-G")) for option in options):
            words.append(f"--gres={conf.gres}:{self.nproc}")
        if not self.accelerators and not any(option.startswith(("--cpus", "-c")) for option in options):
            words.append(f"--cpus-per-task={self.nproc}")
        if self.exclusive:
            words.append("--exclusive")
        if conf.spares:
            words.append("--no-kill")  # the job goes on without a node that is down
        for name in ("partition", "account", "time"):
            if value := getattr(conf, name):
                words.append(f"--{name}={value}")
        return [*words, *conf.options]


def check(conf: SlurmConfig, request: JobRequest) -> None:
    """Raise SlurmError if Slurm would refuse the request."""
    try:
        run(["sbatch", "--test-only", *request.arguments(conf)], _script(conf, request), _CHECK_S)
    except SlurmError as error:
        if not any(words in str(error) for words in _NOT_NOW):
            raise _refusal(conf, error) from error


def submit(conf: SlurmConfig, request: JobRequest, timeout_s: float = _SUBMIT_S) -> str:
    """Submit a job and return its number; SlurmError with Slurm's reason and how to fix it."""
    try:
        out = run(["sbatch", "--parsable", *request.arguments(conf)], _script(conf, request), timeout_s)
        return out.strip().partition(";")[0]
    except SlurmError as error:
        cancel_by_name(request.name)  # it may have been submitted if sbatch did not answer in time
        raise _refusal(conf, error) from error
    except BaseException:
        cancel_by_name(request.name)  # it may have been submitted
        raise


def wait_until_it_runs(number: str, on_state: Callable[[str, bool], None], wait_s: float | None) -> Job:
    """Wait until a job has its nodes; SlurmError if it ends before, can never start, or does not start in time.

    ``on_state`` gets each state, and whether it differs from the last one.
    """
    interval, last = _LEAST_POLL_S, ""
    until = math.inf if wait_s is None else time.monotonic() + max(wait_s, _TO_START_S)
    while True:
        job = read_job(number)
        if job.state == RUNNING:
            return job
        if job.state not in (PENDING, *_STARTING):
            raise SlurmError(f"job {number} ended before it started: {job.state}{_because(job)}")
        if job.reason in _HOPELESS:
            cancel(number)
            raise SlurmError(f"job {number} can never start{_because(job)}; check [slurm] of flagperf.toml")
        if job.state == PENDING and time.monotonic() > until:
            raise SlurmError(f"job {number} did not start in time{_because(job)}{_lacking(job)}")
        state = f"job {number} is {job.state}{_because(job)}"
        changed = bool(job.reason) and state != last
        on_state(state + (_lacking(job) if changed else ""), changed)
        last = state
        time.sleep(interval)
        interval = min(_MOST_POLL_S, interval * math.sqrt(2))


def _because(job: Job) -> str:
    return f" ({job.reason.replace('_', ' ')})" if job.reason else ""


def _lacking(job: Job) -> str:
    """Return the nodes that are down or drained, if the job may wait for them."""
    if not job.reason.startswith(_NODES_LACK):
        return ""
    try:
        nodes = [str(node) for node in read_nodes().values() if node.is_down or node.is_drained]
    except HostError:
        return ""
    more = f"; and {len(nodes) - 4} more" if len(nodes) > 4 else ""
    return f": {'; '.join(nodes[:4])}{more}" if nodes else ""


def _script(conf: SlurmConfig, request: JobRequest) -> str:
    idle_s = max(_LEAST_IDLE_S, min(_MOST_IDLE_S, request.lease_s))
    return f"#!/bin/sh\nexec {shlex.quote(conf.python)} -I -S -c {shlex.quote(_RELAY)} hold {idle_s:g}\n"


def _refusal(conf: SlurmConfig, error: SlurmError) -> SlurmError:
    text = str(error)
    remedy = f"check [slurm] of flagperf.toml ({conf.source})"
    if "partition" in text.lower():
        try:
            remedy = f"set partition in [slurm] of flagperf.toml; available are {', '.join(read_partitions())}"
        except SlurmError:
            remedy = "set partition in [slurm] of flagperf.toml"
    elif "account" in text.lower():
        remedy = "set account in [slurm] of flagperf.toml"
    elif "generic resource" in text:
        remedy = f"the devices are requested as gres = {conf.gres!r}; set gres in [slurm] of flagperf.toml"
    elif any(word in text for word in ("temporarily un", "queue full", "MaxSubmit", "MaxJobCount", "limit")):
        remedy = "the queue accepts no further job now; try later, or run fewer cases at once (-n)"
    return SlurmError(f"Slurm refuses the job: {text}; {remedy}")
