"""The placement of a plan (hosts, devices, ports and paths) and the processes to start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from flagperf_driver.launch import HostSetup, RankProcess, RoundHosts, launchers
from pytest_flagperf.stored.layout import CASE, host_folder

from .model import Plan


class NamedHost(Protocol):
    """A host with a name and an address."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str: ...


@dataclass(frozen=True)
class PlacedHost:
    """One host of a placement, with its devices and paths."""

    name: str
    address: str
    devices: tuple[int, ...]
    python: str
    code_root: str
    log_dir: str
    cpus: tuple[tuple[int, ...], ...] = ()  # the cores that each rank is bound to; empty: not bound

    @property
    def case_file(self) -> str:
        """The file that ranks read: the complete config, nothing left to merge."""
        return f"{self.log_dir}/{CASE}"


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
    hosts = placement.hosts
    round_hosts = RoundHosts(
        addresses=tuple(host.address for host in hosts),
        nproc=plan.case.nproc,
        master_addr=hosts[0].address,
        master_port=placement.master_port,
        devices=tuple(host.devices for host in hosts),
        # A container that sees only the leased devices may number them differently.
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
