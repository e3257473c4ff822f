"""What is wanted of a host, and what is found there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_flagperf.catalog import DataItem
from pytest_flagperf.hosts.deploy import Code
from pytest_flagperf.runtime import EngineRequest

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class Limits:
    """From where on a host is warned of, or refused."""

    clock_s: float = 0.5  # warned of only: offsets are measured and taken out of the figures
    disk_warn_gib: float = 2.0
    disk_fail_gib: float = 0.25
    memory_warn_gib: float = 1.0  # for each process
    memory_fail_gib: float = 0.25
    others_warn: float = 0.1  # of the cores, used by other processes; rounds may get the validity warning busy
    stolen_warn: float = 0.05  # of the cores' working time


@dataclass(frozen=True)
class Data:
    """A data directory and what it must hold."""

    folder: str
    manifest: tuple[DataItem, ...]


@dataclass(frozen=True)
class Request:
    """What the cases of a run need of a host; of several cases, the most that any needs."""

    code: Code
    nnodes: int = 1
    nproc: int = 1
    hardware: str = ""
    chips: Mapping[str, Sequence[str]] = field(
        default_factory=dict
    )  # each chip's names, as the vendor's tool says them
    devices_per_host: int | None = None
    nvml: bool = False
    probe: str | None = None  # the vendor's own, within the code
    engine: EngineRequest | None = None  # where containers are used
    data: tuple[Data, ...] = ()
    clear_caches: bool = False
    folder: str | None = None  # where the run's results go, on this machine
    limits: Limits = Limits()


@dataclass(frozen=True)
class Finding:
    """One thing about one host. ``devices`` are those that are unfit, ``near`` is the cores near each device."""

    host: str
    kind: str
    level: str
    sentence: str
    remedy: str = ""
    devices: tuple[int, ...] = ()
    near: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @property
    def fatal(self) -> bool:
        return self.level == FAIL


def some(names: Sequence[str]) -> str:
    """The first of them, and how many more."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
