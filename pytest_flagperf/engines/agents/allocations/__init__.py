"""Allocations: they give a run's cases their hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pytest_flagperf.hosts.host_pool import HostPool
from pytest_flagperf.plan import Plan
from pytest_flagperf.report.terminal.live import Live


class Allocation(Protocol):
    """Gives hosts and devices; contacts a host or a scheduler only when a case needs it."""

    @property
    def host_count(self) -> int | None:
        """The number of hosts; None if each case requests its own."""

    @property
    def pool(self) -> HostPool:
        """The hosts at the moment; empty while none are held."""

    def header(self) -> list[str]:
        """Lines about the hosts, for the top of the terminal's output."""

    def check(self, plans: Sequence[Plan]) -> None:
        """Raise Problems if the hosts of these cases cannot be requested."""

    def obtain(self, plan: Plan, watch: Live) -> bool:
        """Hold the hosts of a case; return True if they are new and not checked yet. HostError if that fails."""

    def release(self) -> None:
        """Give back hosts that were requested for a case."""

    def devices(self, plan: Plan) -> Mapping[str, Sequence[int]]:
        """Return by host the devices that the case may use; a host that is missing gives all."""

    def held_by(self) -> str:
        """Return what gives the hosts, for messages about them; empty for this machine and for hosts over SSH."""

    def explain(self) -> str | None:
        """Return why hosts are not available any more; None if nothing is known to have happened."""

    def record(self) -> Mapping[str, Any]:
        """Return entries of plan.json with which ``pool_of`` finds the hosts of a round again."""

    def pool_of(self, directory: Path) -> HostPool:
        """Return the hosts of a stored round, which another process may have started."""

    def close(self) -> None:
        """Close all connections and give everything back."""
