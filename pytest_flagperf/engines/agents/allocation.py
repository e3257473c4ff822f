"""Allocations, which give a run's cases their hosts: given before the run, or those of jobs (packages/slurm)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_flagperf.hosts import Host
from pytest_flagperf.hosts.cluster import ClusterConfig
from pytest_flagperf.hosts.host_pool import SHOWN, HostPool, cluster_pool, local_pool
from pytest_flagperf.plan import Plan
from pytest_flagperf.problems import some
from pytest_flagperf.progress import note
from pytest_flagperf.stored.round_dir import RoundFault

FAULTS_OF_HOSTS = ("lost", "agent", "disk")
"""Kinds of faults that a host has, not the training."""


@dataclass(frozen=True)
class LostHosts:
    """Why hosts are not available any more."""

    sentence: str
    kind: str = "lost"
    """The kind of the fault of a round that ran there: also ``cancelled``, if a user ended what gave the hosts."""
    hosts: tuple[str, ...] = ()
    """The hosts that are lost while others stay; empty if all are."""


class Allocation:
    """Gives hosts and devices; contacts a host or a scheduler only when a case needs it.

    A subclass whose cases request hosts defines ``header``, ``obtain``, which sets ``_pool``, and ``release``.
    """

    _pool = HostPool(())

    @property
    def host_count(self) -> int | None:
        """The number of hosts; None if each case requests its own."""
        return None

    @property
    def pool(self) -> HostPool:
        """The hosts at the moment; empty while none are held."""
        return self._pool

    def header(self) -> list[str]:
        """Lines about the hosts, for the top of the terminal's output."""
        raise NotImplementedError

    def check(self, plans: Sequence[Plan]) -> None:
        """Raise Problems if the hosts of these cases cannot be requested."""

    def obtain(self, plan: Plan, wait_s: float | None = None) -> bool:
        """Hold the hosts of a case, which are not given; return True if they are new and not checked yet, or HostError.

        ``wait_s``: as for ``Engine.run``.
        """
        raise NotImplementedError

    def release(self) -> None:
        """Give back hosts that were requested for a case."""

    def devices(self, plan: Plan) -> Mapping[str, Sequence[int]]:  # noqa: ARG002
        """Return by host the devices that the case may use; a host that is missing gives all."""
        return {}

    def held_by(self) -> str:
        """Return what gives the hosts, for messages about them; empty for this machine and for hosts over SSH."""
        return ""

    def explain(self) -> LostHosts | None:
        """Return why hosts are not available any more; None if nothing new is known to have happened."""
        return None

    def record(self) -> Mapping[str, Any]:
        """Return entries of plan.json with which ``pool_of`` finds the hosts of a round again."""
        return {}

    def pool_of(self, directory: Path) -> HostPool:  # noqa: ARG002
        """Return the hosts of a stored round, which another process may have started."""
        return self.pool

    def close(self) -> None:
        """Close all connections and give everything back."""
        self.release()


class FixedHosts(Allocation):
    """The controller's own machine, the hosts of a cluster, or those of a pool."""

    def __init__(self, cluster: ClusterConfig | None = None, pool: HostPool | None = None) -> None:
        self._cluster = cluster
        self._given = pool

    @property
    def host_count(self) -> int | None:
        if self._given is not None:
            return len(self._given.hosts)
        return len(self._cluster.addresses()) if self._cluster else 1

    @cached_property
    def pool(self) -> HostPool:
        if self._given is not None:
            return self._given
        return local_pool() if self._cluster is None else cluster_pool(self._cluster)

    def header(self) -> list[str]:
        """Return lines about the given hosts, and notes on settings without effect."""
        if self._cluster is None:
            return []
        names = some([address.name for address in self._cluster.addresses()], SHOWN)
        return [
            f"  hosts: {names}, over SSH ({self._cluster.source})",
            *(f"  note: {note}" for note in self._cluster.without_effect),
        ]

    def close(self) -> None:
        if "pool" in self.__dict__:
            self.pool.close()


class Blamed:
    """The hosts that the starts of one round blamed for their end; a later start does without them, if it can."""

    def __init__(self, allocation: Allocation) -> None:
        self._allocation = allocation
        self._directory: Path | None = None
        self._times: Counter[str] = Counter()
        self._excluded: list[Host] = []
        self._unfit: set[str] = set()  # before the round

    def begin(self, directory: Path) -> None:
        """Use all hosts again if another round begins."""
        if directory != self._directory:
            for host in self._excluded:
                self._allocation.pool.include(host)
            self._directory, self._times, self._excluded = directory, Counter(), []
            self._unfit = set(self._allocation.pool.excluded)

    @property
    def hosts(self) -> list[Host]:
        """The hosts that are left out since the round began."""
        pool = self._allocation.pool
        return [host for host in pool.hosts if host.name in pool.excluded.keys() - self._unfit]

    def leave_out(self, fault: RoundFault, nnodes: int) -> None:
        """Exclude the host of a fault that is the host's, or the second one there, if enough others are usable.

        A given host that is needed must pass the preflight again after a fault that is the host's.
        """
        pool, name = self._allocation.pool, fault.host or ""
        self._times[name] += 1
        host, suffice = pool.host(name), len(pool.usable) > nnodes
        is_hosts = fault.kind in FAULTS_OF_HOSTS
        if host is None or host not in pool.usable:
            return
        if suffice and (is_hosts or self._times[name] > 1):
            note("line", text=f"{name} is left out of the next start: {fault.sentence}")
        elif is_hosts and self._allocation.host_count is not None:
            note("line", text=f"{name} is needed, and must pass the preflight before the next start: {fault.sentence}")
        else:
            return
        pool.exclude(host, fault.sentence)
        self._excluded.append(host)
