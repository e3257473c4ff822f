"""The hosts of a run, in the order in which cases take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import Host, HostError
from .local import LocalHost


@dataclass(frozen=True)
class Fleet:
    """Hosts with different names; the first of those taken is the one where the ranks meet."""

    hosts: tuple[Host, ...]

    def __post_init__(self) -> None:
        names = [host.name for host in self.hosts]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise HostError(f"two hosts have the same name: {', '.join(twice)}; give each its own")

    def take(self, nnodes: int) -> tuple[Host, ...]:
        if nnodes > len(self.hosts):
            names = ", ".join(host.name for host in self.hosts) or "none"
            raise HostError(f"{nnodes} hosts are wanted and there are {len(self.hosts)}: {names}")
        return self.hosts[:nnodes]

    def close(self) -> None:
        for host in self.hosts:
            host.close()


def local_fleet() -> Fleet:
    return Fleet((LocalHost(),))


def fleet(hosts: Sequence[Host]) -> Fleet:
    return Fleet(tuple(hosts))
