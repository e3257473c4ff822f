"""The ranks of a plan on the hosts of a round: the process of each, with the environment that the controller gives it.

A host adds what only it knows: ``flagperf_driver/rank_process.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from flagperf_driver.layout import CASE
from flagperf_driver.rank_process import RankProcess
from pytest_flagperf.stored import to_json_types
from pytest_flagperf.stored.layout import host_folder
from pytest_flagperf.stored.plan import StoredHost

from .make import Plan


class NamedHost(Protocol):
    """A host with a name and an address."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str: ...


@dataclass(frozen=True)
class PlacedHost(StoredHost):
    """A host of a placement: what is stored of it, and what only its ranks need."""

    cpus: tuple[tuple[int, ...], ...] = ()  # the cores that each rank is bound to; empty: not bound
    env: Mapping[str, str] = field(default_factory=dict)  # the variables of its Python
    path: tuple[str, ...] = ()  # folders of packages that precede those of its Python

    def to_json(self) -> dict[str, Any]:
        """Return what is stored: not the variables, which may be secret."""
        return {item.name: to_json_types(getattr(self, item.name)) for item in fields(StoredHost)}


@dataclass(frozen=True)
class Placement:
    """The hosts of a round in the order of their ranks; the ranks meet on the first one."""

    hosts: tuple[PlacedHost, ...]
    master_port: int | str
    threads_per_rank: int | str
    only_leased: bool = False  # ranks see only the devices of their round


def expected_placement(plan: Plan, hosts: Sequence[NamedHost], *, only_leased: bool = False) -> Placement:
    """Return the placement that ``--plan`` shows: the first hosts with their first devices.

    Placeholders in braces replace unknown values, and ``<hostN>`` the address of each missing host.
    """
    case = plan.case
    known = [(host.name, host.address) for host in hosts[: case.nnodes]]
    missing = [(f"host{number}", f"<host{number}>") for number in range(len(known), case.nnodes)]
    return Placement(
        tuple(
            PlacedHost(
                name,
                noderank,
                address,
                tuple(range(case.nproc)),
                python="{python}",
                code_root="{code}",
                log_dir=f"{{round}}/{host_folder(name, noderank)}",
            )
            for noderank, (name, address) in enumerate(known + missing)
        ),
        master_port="{free port}",
        threads_per_rank="{cores per rank}",
        only_leased=only_leased,
    )


def rank_processes(plan: Plan, placement: Placement) -> list[list[RankProcess]]:
    """Return the processes that each host of a placement starts for a plan."""
    return [
        [_rank(plan, placement, noderank, local_rank) for local_rank in range(plan.case.nproc)]
        for noderank in range(len(placement.hosts))
    ]


def _rank(plan: Plan, placement: Placement, noderank: int, local_rank: int) -> RankProcess:
    host, nproc = placement.hosts[noderank], plan.case.nproc
    rank = noderank * nproc + local_rank
    variables = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": len(placement.hosts) * nproc,
        "LOCAL_WORLD_SIZE": nproc,
        "NODE_RANK": noderank,
        "MASTER_ADDR": placement.hosts[0].address,
        "MASTER_PORT": placement.master_port,
        "OMP_NUM_THREADS": placement.threads_per_rank,
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that wait actively would take cores from other ranks
        "FLAGPERF_CASE": f"{host.log_dir}/{CASE}",
        "FLAGPERF_LOG_DIR": host.log_dir,
        "PYTHONPATH": ":".join([host.code_root, f"{host.code_root}/suites", *host.path]),
    }
    # A container that sees only the leased devices may number them differently.
    if plan.visible_devices and not placement.only_leased:
        variables[plan.visible_devices] = ",".join(map(str, host.devices))
    return RankProcess(
        rank,
        (host.python, "-u", f"{host.code_root}/{plan.program}"),
        {**host.env, **{name: str(value) for name, value in variables.items()}},
        host.log_dir,
        host.cpus[local_rank] if host.cpus else (),
    )
