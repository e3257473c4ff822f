"""Where a plan runs this time: hosts, devices, ports and paths; and the processes that follow from both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from flagperf_driver.launch import HostSetup, RankProcess, RoundHosts, launchers
from pytest_flagperf.stored.layout import CASE, host_folder

from .model import Plan


class Place(Protocol):
    """What must be known of a host that a plan is shown for."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str: ...


@dataclass(frozen=True)
class PlacedHost:
    """One host of a placement, with its devices and where things lie there."""

    name: str
    address: str
    devices: tuple[int, ...]
    python: str
    code_root: str
    log_dir: str
    cpus: tuple[tuple[int, ...], ...] = ()  # of each rank there, the cores that it is bound to; empty: to none

    @property
    def case_file(self) -> str:
        """What the ranks read: everything decided, nothing left to merge."""
        return f"{self.log_dir}/{CASE}"


@dataclass(frozen=True)
class Placement:
    """The hosts of a round in the order of their ranks; the ranks meet on the first one."""

    hosts: tuple[PlacedHost, ...]
    master_port: int | str
    threads_per_rank: int | str
    only_leased: bool = False  # ranks see no devices but their round's


def expected_placement(plan: Plan, hosts: Sequence[Place], *, only_leased: bool = False) -> Placement:
    """The placement that ``--plan`` shows: the first hosts with their first devices, and a word for what is not known.

    Where there are too few hosts, as with a plan for elsewhere, their names say so.
    """
    case = plan.case
    known = [(host.name, host.address) for host in hosts[: case.nnodes]]
    missing = [(f"host{number}", f"<host{number}>") for number in range(len(known), case.nnodes)]
    return Placement(
        tuple(
            PlacedHost(
                name,
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
    """The processes that each host of a placement starts for a plan."""
    hosts = placement.hosts
    round_hosts = RoundHosts(
        addresses=tuple(host.address for host in hosts),
        nproc=plan.case.nproc,
        master_addr=hosts[0].address,
        master_port=placement.master_port,
        devices=tuple(host.devices for host in hosts),
        # In such a container devices may have other numbers than outside, and who makes it decides which.
        visible_devices_env=None if placement.only_leased else plan.visible_devices,
        threads_per_rank=placement.threads_per_rank,
    )
    launch = launchers()[plan.launcher]
    return [launch(round_hosts, noderank, _host_setup(plan, host)) for noderank, host in enumerate(hosts)]


def _host_setup(plan: Plan, host: PlacedHost) -> HostSetup:
    return HostSetup(
        python=host.python,
        program=f"{host.code_root}/{plan.program}",
        case_file=host.case_file,
        log_dir=host.log_dir,
        code_root=host.code_root,
        cpus=host.cpus,
    )
