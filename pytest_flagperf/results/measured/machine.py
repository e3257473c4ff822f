"""The machine of a round as reported by its hosts: the part of the fingerprint that the plan cannot know."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from flagperf_driver.node.logs.ranklog import whole
from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.logs import monitors
from pytest_flagperf.stored import objects
from pytest_flagperf.stored.layout import host_of, noderank_of
from pytest_flagperf.stored.plan import StoredPlan, is_cpu

NOTED = frozenset(["os", "memory", "hardware", "image_id", "environment", "commit", "variables"])
"""Facts that do not change figures by themselves: a difference is noted, and the figures are compared."""
_UNKNOWN = "unknown"
Facts = Mapping[str, Any]


def facts(round_dir: Path, plan: StoredPlan, init_end: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the known facts, texts or numbers, by names for people; ``init_end`` is a rank's INIT_END record."""
    reports = monitors.reports(round_dir)
    several = plan.shape.nnodes > 1
    hosts = {
        host_of(folder): dict(_of_host(report, several=several))
        for folder, report in sorted(reports.items(), key=lambda item: noderank_of(item[0]))
    }
    return {**_merged(hosts), **dict(_binding(plan)), **dict(_software(plan, init_end or {}))}


def differences(old: Facts, new: Facts) -> list[str]:
    """Return the facts that make figures not comparable; a fact that is known on one side only does not count."""
    return list(_differing(old, new, (name for name in {**old, **new} if name not in NOTED)))


def notes(old: Facts, new: Facts) -> list[str]:
    """Return the differences in noted facts, and the facts that are known on one side only."""
    lines = list(_differing(old, new, (name for name in {**old, **new} if name in NOTED)))
    for own, others, which in ((old, new, "old"), (new, old, "new")):
        if others and not own:
            lines.append(f"the machine of the {which} run is unknown")
        elif missing := [name for name in others if name not in own and name not in NOTED]:
            lines.append(f"unknown for the {which} run: {', '.join(missing)}")
    return lines


def _differing(old: Facts, new: Facts, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if name in old and name in new and old[name] != new[name]:
            yield f"{name}: {old[name]} -> {new[name]}"


# -- the chip ------------------------------------------------------------------------------------------------


def unverified_chip(round_dir: Path, plan: StoredPlan, init_end: Mapping[str, Any]) -> str:
    """Return why the chip of the case is not verified; empty if every host's kernel and devices reported it.

    The cards of a framework's device ``cpu`` are cores: only their processor's name counts, whatever a probe says.
    """
    chip, reports = plan.case.hardware, monitors.reports(round_dir)
    if plan.devices_are_cores and is_cpu(chip):
        return ""
    if not plan.devices_are_cores and is_cpu(str(init_end.get("device", ""))):
        return f"{chip}: the framework trained on {init_end['device']}, not on {plan.device}"
    problem = _processor_problem if plan.devices_are_cores else _devices_problem
    found = ((host.name, problem(reports.get(host.folder, {}), plan)) for host in plan.hosts)
    return next((f"{chip}: {name}: {text}" for name, text in found if text), "")


def _processor_problem(report: Mapping[str, Any], plan: StoredPlan) -> str:
    host = report.get("host")
    name = str((host if isinstance(host, dict) else {}).get("cpu", _UNKNOWN))
    if is_named(name, plan.case.hardware, ()):
        return ""
    return f"the framework's device is {plan.device}, and the processor is {name}"


def _devices_problem(report: Mapping[str, Any], plan: StoredPlan) -> str:
    devices = objects(report.get("devices"))
    named = [str(device["name"]) for device in devices if device.get("name")]
    if len(named) < plan.case.nproc:
        return f"{len(named)} of {plan.case.nproc} devices reported a name, by NVML or the vendor's probe.py"
    other = next((name for name in named if not is_named(name, plan.case.hardware, plan.chip_names)), "")
    if other:
        return f"a device reported the name {other}"
    host, ids = report.get("host"), " or ".join(dict.fromkeys(plan.chip_pci))
    counts = re.findall(r"(\d+) x ([0-9a-f:]{9})", str(host.get("accelerators") if isinstance(host, dict) else ""))
    present = sum(int(count) * plan.chip_pci.count(pci) for count, pci in counts)
    if present >= plan.case.nproc:
        return ""
    kernel = f"the kernel has {present} devices with the PCI id {ids}" if ids else "vendor.toml has no pci for the chip"
    return f"named by the vendor's own probe; {kernel}, and {plan.case.nproc} were used"


def is_named(name: str, chip: str, patterns: Sequence[str]) -> bool:
    """Return True if the device name that the vendor's tool prints belongs to the chip.

    Compare by the chip's patterns; without patterns, by the chip's name.
    """
    if patterns:
        return any(re.search(pattern, name, re.IGNORECASE) for pattern in patterns)
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(chip)}(?![A-Za-z0-9])", name, re.IGNORECASE) is not None


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
    for name in ("kernel", "os", "hardware", "variables"):
        if host.get(name) not in (None, "", _UNKNOWN):
            yield name, host[name]
    # A round on one host does not use the network.
    for name in ("rdma", "network") if several else ():
        if host.get(name):
            yield name, host[name]


def _of_devices(report: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    devices = objects(report.get("devices"))
    values_of: dict[str, Callable[[Mapping[str, Any]], str | None]] = {
        "chip": lambda device: device.get("name"),
        "chip_memory": lambda device: device.get("memory_total") and f"{device['memory_total']:.0f} MiB",
        "firmware": lambda device: device.get("firmware"),
        "power_limit": lambda device: device.get("power_limit") and f"{device['power_limit']:g} W",
        "interconnect": _interconnect,
        "partitioned": lambda device: "yes" if device.get("partitioned") else None,
    }
    if report.get("driver"):
        yield "driver", report["driver"]
    for name, value_of in values_of.items():
        if values := list(dict.fromkeys(value for device in devices if (value := value_of(device)))):
            yield name, ", ".join(values)


def _interconnect(device: Mapping[str, Any]) -> str | None:
    """The device's links to others and its bus; an idle device slows its bus down, so its best speed counts."""
    links, generation, width = (device.get(name) for name in ("links", "best_pcie_generation", "pcie_width"))
    parts = [f"{links:g} links"] if links else []
    if generation and width:
        parts.append(f"PCIe {generation:g} x{width:g}")
    return ", ".join(parts) or None


def _merged(hosts: Mapping[str, Facts]) -> dict[str, Any]:
    """Merge the facts of all hosts: a common value once, else the value of each host."""
    merged = {}
    for name in dict.fromkeys(name for host in hosts.values() for name in host):
        values = {host: facts.get(name, _UNKNOWN) for host, facts in hosts.items()}
        same = len(set(values.values())) == 1
        merged[name] = next(iter(values.values())) if same else ", ".join(f"{h}: {v}" for h, v in values.items())
    return merged


def _binding(plan: StoredPlan) -> Iterator[tuple[str, str]]:
    """Yield how ranks were bound to cores, not to which cores: a lease may give any devices.

    Yield nothing if there were no cores to bind to: a round of one card on that host may be bound and still comparable.
    """
    cores = _cores(plan)
    if not plan.bind:
        yield "binding", "none"
    elif any(cores):
        kind = "a core each" if plan.devices_are_cores else "near its device"
        yield "binding", kind if all(cores) else "of some ranks"


def cores_of_ranks(plan: StoredPlan) -> str:
    """The cores that ranks were bound to, in the order of hosts, with counts: ``4 x 0-31; 4 x 32-63``."""
    cores = _cores(plan)
    runs = [(text or "any", len(list(same))) for text, same in groupby(cores)] if any(cores) else []
    return "; ".join(f"{count} x {text}" if count > 1 else text for text, count in runs)


def _cores(plan: StoredPlan) -> list[str]:
    """The cores of each started process; an empty text means any core."""
    return [cores for host in plan.hosts for cores in host.cores]


# -- software ------------------------------------------------------------------------------------------------


def _software(plan: StoredPlan, init_end: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    used = plan.interpreter
    if used.get("image"):
        yield "image", used.get("digest") or used["image"]
        yield "image_id", used.get("image_id") or _UNKNOWN
    elif used.get("label"):
        yield "environment", used["label"]
    if used.get("python"):
        yield "python", used["python"]
    if isinstance(libraries := init_end.get("libraries"), Mapping):
        yield from ((str(name), str(version)) for name, version in sorted(libraries.items()))
    checkout = plan.checkout
    if checkout.get("commit"):
        yield "commit", f"{checkout['commit']}{' with changes' if checkout.get('changed') else ''}"
