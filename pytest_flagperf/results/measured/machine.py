"""What a round ran on, as its hosts said when it ran: the part of the fingerprint that no plan can know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from pytest_flagperf.results.logs import monitors
from pytest_flagperf.results.logs.ranklog import whole
from pytest_flagperf.results.units import quantity
from pytest_flagperf.stored import objects
from pytest_flagperf.stored.layout import host_of, noderank_of
from pytest_flagperf.stored.plan import StoredPlan

TOLD = frozenset(["os", "memory", "hardware", "image_id", "environment", "commit"])
"""Facts that bend no figure by themselves: where they differ it is told, and the figures are compared all the same."""
_UNKNOWN = "unknown"
Facts = Mapping[str, Any]


def facts(round_dir: Path, plan: StoredPlan, init_end: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Each fact a text or a number, by a name that people read; what no host said is not there.

    ``init_end`` is what a rank said of itself when it was ready.
    """
    reports = monitors.reports(round_dir)
    several = plan.case.nnodes > 1
    hosts = {
        host_of(folder): dict(_of_host(report, several=several))
        for folder, report in sorted(reports.items(), key=lambda item: noderank_of(item[0]))
    }
    return {**_merged(hosts), **dict(_binding(plan)), **dict(_software(plan, init_end or {}))}


def differences(old: Facts, new: Facts) -> list[str]:
    """What makes figures unlike, fact by fact; what is not known of both is no difference."""
    return list(_differing(old, new, (name for name in {**old, **new} if name not in TOLD)))


def notes(old: Facts, new: Facts) -> list[str]:
    """What else is to be known of two machines: facts that weigh little, and those that are not known of both."""
    found = list(_differing(old, new, (name for name in {**old, **new} if name in TOLD)))
    for mine, others, which in ((old, new, "old"), (new, old, "new")):
        if others and not mine:
            found.append(f"what the {which} one ran on is not known")
        elif lacking := [name for name in others if name not in mine and name not in TOLD]:
            found.append(f"not known of the {which} one: {', '.join(lacking)}")
    return found


def _differing(old: Facts, new: Facts, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if name in old and name in new and old[name] != new[name]:
            yield f"{name}: {old[name]} -> {new[name]}"


# -- hosts ---------------------------------------------------------------------------------------------------


def _of_host(report: Mapping[str, Any], *, several: bool) -> Iterator[tuple[str, Any]]:
    yield from _of_devices(report)
    host = report.get("host")
    if not isinstance(host, dict):
        return
    for name in ("cpu", "sockets", "cores", "usable_cores"):
        if host.get(name):
            yield name, host[name]
    if memory := whole(host.get("memory_bytes")):
        yield "memory", quantity(memory, "bytes")
    for name in ("kernel", "os", "hardware"):
        if host.get(name) not in (None, "", _UNKNOWN):
            yield name, host[name]
    # A round on one host has no use for the network.
    for name in ("rdma", "network") if several else ():
        if host.get(name):
            yield name, host[name]


def _of_devices(report: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    devices = objects(report.get("devices"))
    told: dict[str, Callable[[Mapping[str, Any]], str | None]] = {
        "chip": lambda one: one.get("name"),
        "chip_memory": lambda one: one.get("memory_total") and f"{one['memory_total']:.0f} MiB",
        "firmware": lambda one: one.get("firmware"),
        "power_limit": lambda one: one.get("power_limit") and f"{one['power_limit']:g} W",
        "interconnect": _interconnect,
        "partitioned": lambda one: "yes" if one.get("partitioned") else None,
    }
    if report.get("driver"):
        yield "driver", report["driver"]
    for name, of in told.items():
        if values := list(dict.fromkeys(value for one in devices if (value := of(one)))):
            yield name, ", ".join(values)


def _interconnect(device: Mapping[str, Any]) -> str | None:
    """Its links to its like, and the bus; a device at rest has slowed its bus down, so what it can do counts."""
    links, generation, width = (device.get(name) for name in ("links", "best_pcie_generation", "pcie_width"))
    found = [f"{links:g} links"] if links else []
    if generation and width:
        found.append(f"PCIe {generation:g} x{width:g}")
    return ", ".join(found) or None


def _merged(hosts: Mapping[str, Facts]) -> dict[str, Any]:
    """What all hosts agree on once; else what each one says."""
    found = {}
    for name in dict.fromkeys(name for host in hosts.values() for name in host):
        values = {host: its.get(name, _UNKNOWN) for host, its in hosts.items()}
        same = len(set(values.values())) == 1
        found[name] = next(iter(values.values())) if same else ", ".join(f"{h}: {v}" for h, v in values.items())
    return found


def _binding(plan: StoredPlan) -> Iterator[tuple[str, str]]:
    """Whether the ranks were bound to cores, and to which kind of them, not to which: a lease gives any devices.

    Nothing where there was nothing to bind them by: one card of that host may well be bound, and be compared.
    """
    cores = _cores(plan)
    if not plan.bind:
        yield "binding", "none"
    elif any(cores):
        each = "a core each" if plan.device == "cpu" else "near its device"
        yield "binding", each if all(cores) else "of some ranks"


def cores_of_ranks(plan: StoredPlan) -> str:
    """Those that they were bound to, host by host, the same ones together: ``4 x 0-31; 4 x 32-63``."""
    cores = _cores(plan)
    runs = [(text or "any", len(list(same))) for text, same in groupby(cores)] if any(cores) else []
    return "; ".join(f"{count} x {text}" if count > 1 else text for text, count in runs)


def _cores(plan: StoredPlan) -> list[str]:
    """Of each process that was started; an empty text is any core."""
    return [cores for host in plan.hosts for cores in host.cores]


# -- what ran on them ----------------------------------------------------------------------------------------


def _software(plan: StoredPlan, init_end: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    used = plan.interpreter
    if used.get("image"):
        yield "image", used.get("digest") or used["image"]
        yield "image_id", used.get("image_id") or _UNKNOWN
    elif used.get("label"):
        yield "environment", used["label"]
    if used.get("python"):
        yield "python", used["python"]
    yield from ((str(name), str(version)) for name, version in sorted(_mapping(init_end.get("libraries")).items()))
    checkout = plan.checkout
    if checkout.get("commit"):
        yield "commit", f"{checkout['commit']}{' with changes' if checkout.get('changed') else ''}"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
