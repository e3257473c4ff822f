"""The hosts of a run, in the order in which cases use them."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TypeVar

from flagperf_driver.node import processes
from pytest_flagperf.packages import need
from pytest_flagperf.problems import some

from . import Host, HostError
from .cluster import ClusterConfig
from .local import CommandHost, LocalHost

T = TypeVar("T")

AT_ONCE = 64
_OTHER_FILES, _FILES_PER_HOST = 200, 8
"""Open files of the controller: a connection has up to 3 and each program whose lines are read 2, and a lock between
two starts 1."""
_MANY = 32
"""With more hosts than these, the threads for them stay on one core."""
SHOWN = 8
"""The most names of hosts in a message."""


@dataclass(frozen=True)
class HostPool:
    """Hosts with different names; the ranks of a case meet on the first host that it takes."""

    hosts: tuple[Host, ...]
    _excluded: dict[str, str] = field(default_factory=dict)

    @property
    def usable(self) -> tuple[Host, ...]:
        """The hosts that are not excluded."""
        return tuple(host for host in self.hosts if host.name not in self._excluded)

    def host(self, name: str) -> Host | None:
        """Return the host of this name; None if the run has no such host."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> Mapping[str, Host]:
        return {host.name: host for host in self.hosts}

    @property
    def excluded(self) -> Mapping[str, str]:
        """The excluded hosts by name, with the reasons."""
        return dict(self._excluded)

    def exclude(self, host: Host, why: str) -> None:
        """Stop using a host; the first reason is kept."""
        self._excluded.setdefault(host.name, why)

    def include(self, host: Host) -> None:
        """Use an excluded host again."""
        self._excluded.pop(host.name, None)

    def take(self, nnodes: int) -> tuple[Host, ...]:
        hosts = self.usable
        if nnodes > len(hosts):
            names = some([host.name for host in hosts], SHOWN) or "none"
            left_out = [f"; {name} is left out: {why}" for name, why in self._excluded.items()]
            more = f"; {len(left_out) - SHOWN} more are left out" if len(left_out) > SHOWN else ""
            without = "".join(left_out[:SHOWN]) + more
            raise HostError(f"needs {nnodes} hosts, {len(hosts)} available: {names}{without}")
        return hosts[:nnodes]

    def close(self) -> None:
        with one_core(self.hosts):
            run_on_each(self.hosts, lambda host: host.close())


def run_on_each(hosts: Iterable[Host], work: Callable[[Host], T]) -> dict[Host, T | HostError]:
    """Run ``work`` on all hosts at once. Return the result or the HostError of each host."""
    hosts = list(hosts)
    waiting: queue.SimpleQueue[Host] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Host, T | HostError | None, BaseException | None]] = queue.SimpleQueue()
    for host in hosts:
        waiting.put(host)
    if len(hosts) == 1:
        _work(waiting, done, work)
    else:
        # Daemon threads that are not joined: Ctrl-C does not wait for a host that hangs.
        for number in range(min(AT_ONCE, len(hosts))):
            threading.Thread(target=_work, args=(waiting, done, work), name=f"each {number}", daemon=True).start()
    results: dict[Host, T | HostError] = {}
    failed: BaseException | None = None
    for _ in hosts:
        host, result, error = done.get()
        if error is not None:
            failed = failed or error
        else:
            results[host] = result  # type: ignore[assignment]
    if failed is not None:
        raise failed
    return {host: results[host] for host in hosts}


def _work(
    waiting: queue.SimpleQueue[Host],
    done: queue.SimpleQueue[tuple[Host, T | HostError | None, BaseException | None]],
    work: Callable[[Host], T],
) -> None:
    while True:
        try:
            host = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            done.put((host, work(host), None))
        except HostError as error:
            done.put((host, error, None))
        except BaseException as error:
            done.put((host, None, error))


@contextmanager
def one_core(hosts: Sequence[Host]) -> Iterator[None]:
    """Keep this thread and the threads that it starts on one core, if they talk to many other hosts.

    One thread of Python runs at a time. On several cores, its hand-over to the next one costs as much as the work.
    """
    if len(hosts) <= _MANY or any(host.is_local for host in hosts) or not hasattr(os, "sched_setaffinity"):
        yield
        return
    usable = os.sched_getaffinity(0)
    with suppress(OSError):  # the core may be taken away from this process
        os.sched_setaffinity(0, {_core()})
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)


@cache
def _core() -> int:
    """Return the core on which this thread runs, at the first call: threads of earlier calls stay there."""
    return int(Path("/proc/thread-self/stat").read_text().rpartition(")")[2].split()[36])


def allow_descriptors(hosts: int) -> list[str]:
    """Let this process open as many files as the connections to so many hosts need; a warning if it may not."""
    needed = _OTHER_FILES + _FILES_PER_HOST * hosts
    with suppress(ImportError):  # Windows
        allowed = processes.allow_descriptors(needed)
        if allowed < needed:
            need_words = f"the connections to {hosts:,} hosts need about {needed:,}"
            return [f"warning: this process may open {allowed:,} files; {need_words}: raise ulimit -Hn"]
    return []


def local_pool() -> HostPool:
    return HostPool((LocalHost(),))


def cluster_pool(conf: ClusterConfig) -> HostPool:
    """Return the hosts of a cluster; connections are made when needed."""
    allow_descriptors(len(conf.hosts))
    if conf.reach:
        return HostPool(tuple(CommandHost(address, conf) for address in conf.addresses()))
    need("fabric")
    from .ssh import ssh_hosts  # imported only for clusters, since it is slow

    return HostPool(ssh_hosts(conf))
