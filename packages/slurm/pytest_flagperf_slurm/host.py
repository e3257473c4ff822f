"""The hosts of a Slurm job, reached through srun."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pytest_flagperf.hosts import HostError, HostGone, silence
from pytest_flagperf.hosts.stream import Carrier, HostStream
from pytest_flagperf.hosts.stream_host import StreamHost

from .jobs_and_nodes import Job, Node, SlurmError, end_of, environment, explain, read_job, read_nodes
from .one_srun import CONNECT_S, OneSrun, node_preface, srun
from .socket_carrier import SocketCarrier

_log = logging.getLogger("flagperf.slurm")
RECONNECT_S = 10.0  # later, Slurm has nothing to prepare on the node
_ASK_S = 2.0  # seconds between two questions to Slurm about the same job
# The step goes on without a node, and without a relay that has ended.
_ALL_NODES = ("--ntasks-per-node=1", "--input=all", "--no-kill", "--wait=0", "--kill-on-bad-exit=0")
# srun would search the program on this machine's PATH.
_RESOLVED_THERE = ("/bin/sh", "-c", 'exec "$0" "$@"')


class JobState:
    """What the hosts of a job share: the srun that starts all relays, and the state of the job and its nodes.

    They ask Slurm together: many may be lost at once.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._lock = threading.Lock()
        self._asked_at = -math.inf
        self._answer: tuple[Job, Mapping[str, Node]] | None = None
        self._starting = threading.Lock()
        self._srun: OneSrun | None = None
        self._unconnected, self._open = set(job.nodes), set(job.nodes)

    def connection(self, node: str, argv: Sequence[str], request: Mapping[str, object]) -> SocketCarrier | None:
        """Return the connection of a node, on all of which one srun starts the command with this request.

        None for a job of one node, for a node that cannot connect, and for a node that had its connection.
        """
        with self._starting:
            if len(self.job.nodes) == 1 or node not in self._unconnected:
                return None
            self._unconnected.discard(node)
            try:
                if self._srun is None:
                    name = f"job {self.job.number}"
                    words = [*step(self.job.number, self.job.nodes), *_ALL_NODES, *_RESOLVED_THERE, *argv]
                    self._srun = OneSrun(name, words, environment(), request, self.job.nodes)
            except (HostError, OSError) as error:
                _log.info("job %s: %s", self.job.number, error)
                self._unconnected.clear()
                return None
            srun = self._srun
        return srun.connection(node)

    def close(self, node: str) -> None:
        """End the srun after the last host of the job is closed."""
        with self._starting:
            self._open.discard(node)
            srun, self._srun = (None, self._srun) if self._open else (self._srun, None)
        if srun is not None:
            srun.close()

    def problem(self, node: str) -> str | None:
        """Return why a node is lost for good; None for a job that runs, or that Slurm cannot tell."""
        with self._lock:
            if time.monotonic() - self._asked_at >= _ASK_S:
                self._answer = None
                with suppress(SlurmError):
                    self._answer = read_job(self.job.number), read_nodes(self.job.nodes)
                self._asked_at = time.monotonic()
            if self._answer is None:
                return None
            now, nodes = self._answer
        return explain(self.job, now, {node: nodes[node]} if node in nodes else {})


class SlurmHost(StreamHost):
    """A node of a job. A connection is one step of the job, which runs beside all others (``--overlap``)."""

    def __init__(
        self, name: str, address: str, python: str, state: JobState, *, own: bool, report: Sequence[str]
    ) -> None:
        super().__init__(name, address, python, beat_s=silence.ping_s(len(state.job.nodes)))
        self.job = state.job
        self._state = state
        self._settings = {"own": own, "report": list(report), "stays": True}
        self._was_connected = False

    def variable(self, name: str) -> str | None:
        """Return an environment variable of the job's steps on this node, of those that are reported; else None."""
        with self._lock:
            env = self._connected().greeting.get("env")
        return env.get(name) if isinstance(env, dict) else None

    def reconnect(self) -> None:
        self._check_job()
        super().reconnect()

    def _open_stream(self) -> HostStream:
        name = f"{self.name}: job {self.job.number}"
        try:
            carrier: Carrier | None = self._state.connection(self.name, self._command, self._settings)
            first = b""  # srun has sent it
            if carrier is None:
                timeout_s = RECONNECT_S if self._was_connected else CONNECT_S
                words = [*self.step(), *_RESOLVED_THERE, *self._command]
                carrier, first = srun(name, words, environment(), timeout_s), node_preface(self._settings, self._beat_s)
            stream = HostStream(name, self.python, carrier, first, self._beat_s)
        except HostError:
            self._check_job()  # a better reason
            raise
        self._was_connected = True
        return stream

    def step(self) -> list[str]:
        """Return the command in front of a program that runs on this node beside all other steps of the job."""
        return step(self.job.number, [self.name])

    def close(self) -> None:
        super().close()
        self._state.close(self.name)

    def _check_job(self) -> None:
        """Raise HostGone if the job has ended or its node is down."""
        reason = self._state.problem(self.name)
        if reason is not None:
            raise HostGone(f"{self.name}: {reason}")


def step(number: str, nodes: Sequence[str]) -> list[str]:
    """Return the command in front of a program that runs on nodes of a job beside all other steps of the job."""
    return [
        "srun",
        "--overlap",
        f"--jobid={number}",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        f"--nodelist={','.join(nodes)}",
        "--mem=0",  # all memory of the job on each node
        "--cpu-bind=none",
        "--mpi=none",
        "--chdir=/",
        "--export=ALL",
    ]


def hosts_of(job: Job, python: str, *, own: bool, report: Sequence[str]) -> tuple[SlurmHost, ...]:
    """Return the hosts of a running job; ``report`` names the variables to read from its steps."""
    nodes = read_nodes(job.nodes)
    state = JobState(job)
    return tuple(SlurmHost(name, nodes[name].address, python, state, own=own, report=report) for name in job.nodes)


def wait_until_settled(number: str, timeout_s: float) -> Job:
    """Return a job when it runs no more steps; while Slurm still ends processes its state is not the final one."""
    deadline = time.monotonic() + timeout_s
    while True:
        job = read_job(number)
        if end_of(job) != "COMPLETING" or time.monotonic() >= deadline:
            return job
        time.sleep(0.3)
