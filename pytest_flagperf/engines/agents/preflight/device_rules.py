"""Findings about a host's devices: their number, their chip, foreign processes, health."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flagperf_driver.node.sampling.devices import POWER_CAP
from flagperf_driver.node.sampling.topology import as_list
from pytest_flagperf.engines import FAIL, OK, WARN, Finding
from pytest_flagperf.results.measured.machine import is_named

from .host_requirements import HostRequirements


def device_findings(host: str, survey: Mapping[str, Any], cores: int, request: HostRequirements) -> Iterator[Finding]:
    """Yield the findings about the devices. An unfit device is a failure only if too few others are left."""
    if (allowed := request.allowed.get(host)) is not None:
        survey = {**survey, "devices": [device for device in survey["devices"] if device["index"] in allowed]}
    devices = survey["devices"]
    if survey["error"]:
        yield Finding(
            host,
            "devices",
            FAIL,
            survey["error"],
            "check that the vendor's driver and tool work on that host, and that probe.py can read its output",
        )
        return
    if reason := survey.get("fallback_reason"):
        sentence = f"the vendor's command-line tool is started for each sample and reports fewer values: {reason}"
        remedy = "check that the driver's library is installed and works on that host"
        yield Finding(host, "devices", WARN, sentence, remedy)
    unfit: set[int] = set()
    for kind, sentence, remedy, indexes in _unfitting(devices, request):
        unfit.update(indexes)
        enough = len(devices) - len(unfit) >= request.nproc and kind != "model"
        yield Finding(host, kind, WARN if enough else FAIL, sentence, remedy, tuple(indexes))
    for sentence, remedy in _degraded(devices):
        yield Finding(host, "health", WARN, sentence, remedy)
    yield _counted(host, survey, cores, request)
    near = {device["index"]: tuple(device["near"]) for device in devices if device.get("near")}
    if near:
        yield Finding(host, "numa", OK, _places(near), near=tuple(near.items()))


def _counted(host: str, survey: Mapping[str, Any], cores: int, request: HostRequirements) -> Finding:
    """Return the finding about the number of devices. Missing devices are excluded, so that no round leases them."""
    devices = survey["devices"]
    if len(devices) < request.nproc:
        source = f" from {request.held_by}" if host in request.allowed else ""
        sentence = f"{len(devices)} available{source}, {request.nproc} needed"
        return Finding(host, "devices", FAIL, sentence, "request fewer with --nodes=NxP, or use other hosts")
    most = request.devices_per_host or max(request.nproc, cores)  # the devices that rounds choose from
    missing = tuple(sorted(set(range(most)) - {device["index"] for device in devices}))
    if request.devices_per_host and len(devices) < request.devices_per_host:
        sentence = f"found {len(devices)}, expected {request.devices_per_host} on a host with {request.hardware}"
        sentence += f": {_device_list(missing)} {_is_or_are(missing)} missing"
        return Finding(
            host, "devices", WARN, sentence, "check the host's kernel log: a device may have failed", missing
        )
    names = ", ".join(sorted({device["name"] for device in devices if device["name"]})) or "unnamed"
    driver = f", driver {survey['driver']}" if survey["driver"] else ""
    return Finding(host, "devices", OK, f"{len(devices)} {names}{driver}", devices=missing)


def _places(near: Mapping[int, Sequence[int]]) -> str:
    """Return the devices of each NUMA node with the node's cores."""
    nodes: dict[str, list[int]] = {}
    for device, cpus in near.items():
        nodes.setdefault(as_list(cpus), []).append(device)
    return "; ".join(
        f"device{'s' if len(near_devices) > 1 else ''} {as_list(near_devices)} near cores {cpus}"
        for cpus, near_devices in nodes.items()
    )


FOREIGN = "foreign processes"
_Unfit = tuple[str, str, str, list[int]]
"""Kind, sentence, remedy and the indexes of the devices."""


def _unfitting(devices: Sequence[Mapping[str, Any]], request: HostRequirements) -> Iterator[_Unfit]:
    """Yield the devices that no rank may use, with the reason."""
    for device in devices:
        index, name = [device["index"]], f"device {device['index']}"
        if device.get("error"):
            yield "health", f"{name} cannot be read: {device['error']}", "reset it, or restart the host", index
            continue
        foreign = [process for process in device["processes"] if not process["own"]]
        if foreign:
            names = "; ".join(map(_describe_process, foreign[:3])) + ("; ..." if len(foreign) > 3 else "")
            yield FOREIGN, f"{name} is in use by {names}", "wait until they end, or ask their owner", index
        if device["row_remap_failed"]:
            yield "health", f"{name} could not remap failing memory rows", "replace the device", index
        if device["partitioned"]:
            part = f"{name} is partitioned (MIG) and not a whole chip"
            yield "health", part, "disable its partitioning", index
    wrong: dict[str, list[int]] = {}
    for device in devices:
        if device["name"] and not is_named(device["name"], request.hardware, request.chips.get(request.hardware, ())):
            wrong.setdefault(device["name"], []).append(device["index"])
    for name, indexes in wrong.items():
        are = f"{_is_or_are(indexes)} a" if len(indexes) == 1 else _is_or_are(indexes)
        yield (
            "model",
            f"{_device_list(indexes)} {are} {name}, not {request.hardware}",
            _right_name(name, request),
            indexes,
        )


def _describe_process(process: Mapping[str, Any]) -> str:
    owner = f" of {process['user']}" if process.get("user") else ""
    memory = f", {process['memory']:.0f} MiB" if process.get("memory") else ""
    return f"{process.get('name') or 'a process'} (pid {process['pid']}{owner}{memory})"


def _device_list(indexes: Sequence[int]) -> str:
    return f"device{'s' if len(indexes) > 1 else ''} {', '.join(map(str, indexes))}"


def _is_or_are(indexes: Sequence[int]) -> str:
    return "is" if len(indexes) == 1 else "are"


def _right_name(name: str, request: HostRequirements) -> str:
    fitting = [chip for chip, patterns in request.chips.items() if is_named(name, chip, patterns)]
    if fitting:
        return f"pass --hw={fitting[0]}"
    return f"pass the name of its chip with --hw, or add the name to chips.{request.hardware}.names in vendor.toml"


def _degraded(devices: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield a sentence and a remedy for each kind of weakness, with all devices that have it."""
    linked = any(device["links"] for device in devices)
    by_weakness: dict[tuple[str, str, str], list[int]] = {}
    for device in devices:
        for weakness in _weaknesses(device, linked=linked):
            by_weakness.setdefault(weakness, []).append(device["index"])
    for (beginning, end, remedy), indexes in by_weakness.items():
        single = len(indexes) == 1
        verbs = {"are": _is_or_are(indexes), "have": "has" if single else "have", "need": "needs" if single else "need"}
        yield beginning.format(who=_device_list(indexes), **verbs) + end, remedy


def _weaknesses(device: Mapping[str, Any], *, linked: bool) -> Iterator[tuple[str, str, str]]:
    """Yield the beginning and the end of a sentence, and a remedy, for a device that works but may be slow."""
    if device["trouble"]:
        yield "the vendor's tool reports for {who}: ", device["trouble"], "see the vendor's manual"
    if device["ecc_uncorrected"]:
        yield "{who} had ", f"{device['ecc_uncorrected']:g} uncorrected memory errors", "reset it and watch the count"
    if device["row_remap_pending"]:
        yield "{who} {need} a reset to remap failing memory rows", "", "reset it, or restart the host"
    # A power cap is not a fault of the cooling; a limit below the default is reported below.
    if reasons := [reason for reason in device["throttle"] if reason != POWER_CAP]:
        yield "{who} {are} throttled: ", ", ".join(reasons), "check its cooling and its power supply"
    if _is_below(device["power_limit"], device["usual_power_limit"]):
        limits = f"{device['power_limit']:g} W; the default is {device['usual_power_limit']:g} W"
        yield "{who} {are} limited to ", limits, "restore the default limit: results with this limit are slower"
    if _is_below(device["pcie_width"], device["best_pcie_width"]):
        lanes = f"{device['pcie_width']:g} of its {device['best_pcie_width']:g} PCIe lanes"
        yield "{who} {have} ", lanes, "reseat it: a contact may be dirty, or a riser bent"
    if device["links_down"] and linked:
        # A warning only: links of a bridge that was never installed look like links of a broken bridge.
        up = device["links"] or 0
        links = f"{up:g} of {up + device['links_down']:g} links to other devices up"
        yield "{who} {have} ", links, "check its bridges and cables, and the host's kernel log"


def _is_below(now: float | None, usual: float | None) -> bool:
    return now is not None and usual is not None and now < usual
