"""Launchers: the processes that each host of a round must start, and their environment variables.

A launcher is a module of this folder with a function ``launch``; no registration is needed. A launcher for some
frameworks only lists them in ``FRAMEWORKS``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

DEFAULT = "env"
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
RESERVED_VARIABLES = frozenset(
    [*_RANKS, "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "FLAGPERF_CASE", "FLAGPERF_LOG_DIR", "PYTHONPATH", "TMPDIR"],
)
"""Environment variables that a vendor cannot set: the agent sets TMPDIR and a launcher the others."""


@dataclass(frozen=True)
class RoundHosts:
    """The hosts of a round, their devices, and the address where all ranks meet."""

    addresses: tuple[str, ...]
    nproc: int
    master_addr: str
    master_port: int | str  # a placeholder in plans without hosts
    devices: tuple[tuple[int, ...], ...] = ()  # of each host, the leased ids; empty: 0..nproc-1
    visible_devices_env: str | None = None  # the variable that limits a process to some devices
    threads_per_rank: int | str = 1

    @property
    def nnodes(self) -> int:
        return len(self.addresses)

    def devices_of(self, noderank: int) -> tuple[int, ...]:
        return self.devices[noderank] if self.devices else tuple(range(self.nproc))


@dataclass(frozen=True)
class HostSetup:
    """The paths and cores that the ranks of one host use."""

    python: str
    program: str
    case_file: str = ""
    log_dir: str = ""
    code_root: str = ""
    cpus: tuple[tuple[int, ...], ...] = ()  # of each local rank, the cores it is bound to; empty: not bound


@dataclass(frozen=True)
class RankProcess:
    """One process to start on a host; ``reports`` lists the ranks that it stands for."""

    rank: int
    local_rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cpus: tuple[int, ...] = ()
    reports: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "reports", self.reports or (self.rank,))


class Launcher(Protocol):
    def __call__(self, hosts: RoundHosts, noderank: int, setup: HostSetup) -> list[RankProcess]: ...


def launchers() -> dict[str, Launcher]:
    """Return all launchers by name: the modules of this folder that have a function ``launch``."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    return {name: module.launch for name, module in modules.items() if hasattr(module, "launch")}


def frameworks_of(launcher: str) -> frozenset[str] | None:
    """Return the frameworks that a launcher supports; None: all."""
    frameworks: frozenset[str] | None = getattr(importlib.import_module(f"{__name__}.{launcher}"), "FRAMEWORKS", None)
    return frameworks


def threads_per_rank(cores: int, nproc: int, bound: Sequence[Sequence[int]] = ()) -> int:
    """Return how many threads each rank may use, so that all ranks of a host share its cores evenly.

    ``bound`` lists the cores that each rank is bound to; ranks that are bound to the same cores share these.
    """
    shares = [len(cpus) // sum(cpus == others for others in bound) for cpus in bound if cpus]
    return max(1, min([*shares, *([] if bound and all(bound) else [cores // nproc])]))
