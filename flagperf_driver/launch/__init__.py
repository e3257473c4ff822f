"""From a plan to processes: what a host must start, and with which environment, so that its ranks meet.

A launcher is a module of this folder with a function ``launch``; putting one there is all it takes. A launcher that
starts ranks of some frameworks only names them in ``FRAMEWORKS``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

DEFAULT = "env"
_PLACE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
OURS = frozenset(
    [*_PLACE, "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "FLAGPERF_CASE", "FLAGPERF_LOG_DIR", "PYTHONPATH", "TMPDIR"],
)
"""Variables that every rank is given, whatever a vendor says; TMPDIR by the agent, the others by a launcher."""


@dataclass(frozen=True)
class World:
    """All ranks of one round, as every host sees them."""

    addresses: tuple[str, ...]
    nproc: int
    master_addr: str
    master_port: int | str  # a text where it is not known yet
    devices: tuple[tuple[int, ...], ...] = ()  # per host, the ids the lease gave; empty: 0..nproc-1
    visible_devices_env: str | None = None  # the variable by which a process is shown only some devices
    threads_per_rank: int | str = 1

    @property
    def nnodes(self) -> int:
        return len(self.addresses)

    def devices_of(self, noderank: int) -> tuple[int, ...]:
        return self.devices[noderank] if self.devices else tuple(range(self.nproc))


@dataclass(frozen=True)
class Site:
    """Where things lie on one host."""

    python: str
    program: str
    case_file: str = ""
    log_dir: str = ""
    code_root: str = ""
    cpus: tuple[tuple[int, ...], ...] = ()  # of each local rank, the cores that it is bound to; empty: to none


@dataclass(frozen=True)
class RankProcess:
    """One process to start on a host; ``reports`` are the ranks whose last word it owes."""

    rank: int
    local_rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cpus: tuple[int, ...] = ()
    reports: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "reports", self.reports or (self.rank,))


class Launcher(Protocol):
    def __call__(self, world: World, noderank: int, site: Site) -> list[RankProcess]: ...


def launchers() -> dict[str, Launcher]:
    """Every launcher there is, by name: the modules of this folder that have a function ``launch``."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    return {name: module.launch for name, module in modules.items() if hasattr(module, "launch")}


def frameworks_of(launcher: str) -> frozenset[str] | None:
    """The frameworks whose ranks a launcher starts; None: any."""
    found: frozenset[str] | None = getattr(importlib.import_module(f"{__name__}.{launcher}"), "FRAMEWORKS", None)
    return found


def threads_per_rank(cores: int, nproc: int, bound: Sequence[Sequence[int]] = ()) -> int:
    """A host's cores shared out fairly; those that ranks are bound to, among the ranks that are bound to them."""
    fair = [len(cpus) // sum(cpus == others for others in bound) for cpus in bound if cpus]
    return max(1, min([*fair, *([] if bound and all(bound) else [cores // nproc])]))
