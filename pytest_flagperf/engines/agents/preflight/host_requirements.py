"""The requirements of a run on a host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_flagperf.catalog import DataItem
from pytest_flagperf.hosts.deploy import Code
from pytest_flagperf.runtime import EngineRequirements


@dataclass(frozen=True)
class Thresholds:
    """Thresholds from which a host gets a warning or is refused."""

    clock_s: float = 0.5  # a warning only: offsets are measured and subtracted
    disk_warn_gib: float = 2.0
    disk_fail_gib: float = 0.25
    memory_warn_gib: float = 1.0  # for each process
    memory_fail_gib: float = 0.25
    others_warn: float = 0.1  # share of the cores that other processes use
    stolen_warn: float = 0.05  # share of the cores' working time that the hypervisor takes


@dataclass(frozen=True)
class Data:
    """A data directory and the files that it must contain."""

    folder: str
    manifest: tuple[DataItem, ...]


@dataclass(frozen=True)
class HostRequirements:
    """The requirements of a run's cases on a host; the largest requirement of all cases."""

    code: Code
    nnodes: int = 1
    nproc: int = 1
    hardware: str = ""
    chips: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by chip: patterns of its names in the tool
    devices_per_host: int | None = None
    allowed: Mapping[str, Sequence[int]] = field(default_factory=dict)  # by host: the only devices to check and use
    held_by: str = ""  # what gave these devices
    nvml: bool = False
    probe: str | None = None  # path of the vendor's probe in the deployed code
    engine: EngineRequirements | None = None  # None without containers
    data: tuple[Data, ...] = ()
    clear_caches: bool = False
    folder: str | None = None  # the folder of the run's results on this machine
    limits: Thresholds = Thresholds()
