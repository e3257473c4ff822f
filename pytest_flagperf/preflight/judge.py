"""What a host's facts mean for those who want to run there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flagperf_driver.node.devices import POWER_CAP
from flagperf_driver.node.topology import as_list

from .findings import FAIL, OK, WARN, Finding, Limits, Wants, some

_GIB = float(1 << 30)

_Said = tuple[str, str, str, str]
"""Kind, level, sentence and remedy."""


def judge(
    host: str, facts: Mapping[str, Any], wants: Wants, clock: tuple[float, float] | None = None
) -> Iterator[Finding]:
    """What a host's facts mean for those who want to run there."""
    for kind, level, sentence, remedy in _place(facts, wants, clock):
        yield Finding(host, kind, level, sentence, remedy)
    if facts["devices"]:
        yield from _devices(host, facts["devices"], facts["cores"], wants)
    for kind, level, sentence, remedy in _extras(facts, wants):
        yield Finding(host, kind, level, sentence, remedy)


def _place(facts: Mapping[str, Any], wants: Wants, clock: tuple[float, float] | None) -> Iterator[_Said]:
    yield _python(facts["python"], facts["executable"])
    if clock:
        yield _clock(*clock, wants.limits)
    yield _cores(facts["cores"], wants)
    yield _memory(facts["memory"], wants)
    yield from _disks(facts["disks"], wants.limits)
    if facts["port"] is None:
        yield "port", FAIL, "none of 100 ports tried in 20000-31999 is free", "see what listens there: ss -ltnp"
    else:
        yield "port", OK, "free", ""


def _python(version: str, executable: str) -> _Said:
    if tuple(map(int, version.split(".")[:2])) >= (3, 8):
        return "python", OK, version, ""
    return "python", FAIL, f"{executable} is Python {version}", NEWER


NEWER = "a Python >= 3.8 is needed: install one there, or name it with python = ... in [cluster]"


def _clock(offset_s: float, doubt_s: float, limits: Limits) -> _Said:
    if abs(offset_s) <= limits.clock_s + doubt_s:
        return "clock", OK, f"{round(offset_s * 1000):+d} ms", ""
    way = "ahead of" if offset_s > 0 else "behind"
    sentence = f"it is {_duration(abs(offset_s))} {way} this machine's (± {doubt_s * 1000:.0f} ms)"
    return "clock", WARN, sentence, "the offset is taken out of all times; set the clock right with chrony or ntp"


def _duration(seconds: float) -> str:
    for unit, size, least in (("days", 86400.0, 172800.0), ("h", 3600.0, 3580.0), ("min", 60.0, 59.5)):
        if seconds >= least:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2f} s"


def _cores(cores: int, wants: Wants) -> _Said:
    if cores >= wants.nproc:
        return "cores", OK, str(cores), ""
    return "cores", WARN, f"{cores} for {wants.nproc} processes", "ask for fewer with --nodes=NxP"


def _memory(memory: Mapping[str, int], wants: Wants) -> _Said:
    free, each = memory["free"] / _GIB, memory["free"] / _GIB / wants.nproc
    if each >= wants.limits.memory_warn_gib:
        return "memory", OK, f"{_gib(free)} free", ""
    sentence = f"{_gib(free)} of {_gib(memory['total'] / _GIB)} free, for {wants.nproc} processes"
    level = FAIL if each < wants.limits.memory_fail_gib else WARN
    return "memory", level, sentence, "see what takes it: ps -eo pid,user,rss,args --sort=-rss | head"


def _disks(disks: Sequence[Mapping[str, Any]], limits: Limits) -> Iterator[_Said]:
    """Each file system once, by the folder of ours that lies on it."""
    seen: set[int] = set()
    for disk in disks:
        if disk["error"]:
            if disk["what"] != "docker":
                remedy = _NAME_ANOTHER[disk["what"]]
                yield "disk", FAIL, f"nothing can be written in {disk['path']}: {disk['error']}", remedy
        elif disk["device"] not in seen:
            seen.add(disk["device"])
            yield _disk(disk, limits)


_NAME_ANOTHER = {
    "cache": "make room there, or name another folder with FLAGPERF_CACHE in the host's environment",
    "scratch": "make room there, or name another folder with TMPDIR in the host's environment",
    "docker": "make room there: docker system prune",
    "results": "make room there, or name another folder with --reports",
}


def _disk(disk: Mapping[str, Any], limits: Limits) -> _Said:
    free = disk["free"] / _GIB
    said = f"{_gib(free)} free in {disk['path']}"
    if free >= limits.disk_warn_gib:
        return "disk", OK, said, ""
    return "disk", FAIL if free < limits.disk_fail_gib else WARN, said, _NAME_ANOTHER[disk["what"]]


def _gib(size: float) -> str:
    return f"{size:.0f} GiB" if size >= 10 else f"{size:.1f} GiB" if size >= 1 else f"{size * 1024:.0f} MiB"


def _extras(facts: Mapping[str, Any], wants: Wants) -> Iterator[_Said]:
    if facts["docker"]:
        yield from _docker(facts["docker"], wants)
    for one in facts["data"]:
        for problem in one["problems"]:
            yield "data", FAIL, problem, "put the data there, or name where they are with --data-dir"
        if not one["problems"]:
            yield "data", OK, one["data_dir"], ""
    if facts["leftovers"]:
        sentence = f"a dead run had left {some(facts['leftovers'])}; it is gone now"
        yield "leftovers", WARN, sentence, ""
    if facts["caches"] is False:
        sentence = "the file caches cannot be cleared as was asked for: only root may"
        yield "caches", WARN, sentence, "log in as root, or leave out --clear-caches"


def _docker(docker: Mapping[str, Any], wants: Wants) -> Iterator[_Said]:
    if docker["error"]:
        yield "docker", FAIL, docker["error"], ""
        return
    yield "docker", OK, docker["version"], ""
    if wants.image and docker["image"]:
        yield "image", OK, wants.image, ""
    elif wants.image and wants.image_is_ours:
        yield "image", OK, f"{wants.image} will be built", ""
    elif wants.image:
        yield "image", WARN, f"{wants.image} is not there and will be pulled", ""


def _devices(host: str, survey: Mapping[str, Any], cores: int, wants: Wants) -> Iterator[Finding]:
    """Count, model, strangers and health: an unfit device matters as much as its lack is felt."""
    devices = survey["devices"]
    if survey["error"]:
        yield Finding(
            host,
            "devices",
            FAIL,
            survey["error"],
            "see that the vendor's driver and tool work on that host, and that its probe.py knows what the tool prints",
        )
        return
    if survey.get("instead"):
        sentence = f"the vendor's tool is asked, a process for each sample and less told: {survey['instead']}"
        yield Finding(host, "devices", WARN, sentence, "see that the driver's library is found there, and answers")
    unfit: set[int] = set()
    for kind, sentence, remedy, indexes in _unfitting(devices, wants):
        unfit.update(indexes)
        enough = len(devices) - len(unfit) >= wants.nproc and kind != "model"
        yield Finding(host, kind, WARN if enough else FAIL, sentence, remedy, tuple(indexes))
    for sentence, remedy in _degraded(devices):
        yield Finding(host, "health", WARN, sentence, remedy)
    yield _counted(host, survey, cores, wants)
    near = {device["index"]: tuple(device["near"]) for device in devices if device.get("near")}
    if near:
        yield Finding(host, "numa", OK, _places(near), near=tuple(near.items()))


def _counted(host: str, survey: Mapping[str, Any], cores: int, wants: Wants) -> Finding:
    """Whether there are as many as there should be; a round must not be given what is not there."""
    devices = survey["devices"]
    if len(devices) < wants.nproc:
        sentence = f"{len(devices)} for {wants.nproc} processes"
        return Finding(host, "devices", FAIL, sentence, "ask for fewer with --nodes=NxP, or for other hosts")
    most = wants.devices_per_host or max(wants.nproc, cores)  # as rounds ask for them
    missing = tuple(sorted(set(range(most)) - {device["index"] for device in devices}))
    if wants.devices_per_host and len(devices) < wants.devices_per_host:
        sentence = f"{len(devices)} of the {wants.devices_per_host} that a host with {wants.hardware} has"
        sentence += f": {_who(missing)} {_are(missing)} missing"
        return Finding(host, "devices", WARN, sentence, "they may have failed: see the host's kernel log", missing)
    names = ", ".join(sorted({device["name"] for device in devices if device["name"]})) or "of no name"
    driver = f", driver {survey['driver']}" if survey["driver"] else ""
    return Finding(host, "devices", OK, f"{len(devices)} {names}{driver}", devices=missing)


def _places(near: Mapping[int, Sequence[int]]) -> str:
    """The devices of each node by their cores."""
    nodes: dict[str, list[int]] = {}
    for device, cpus in near.items():
        nodes.setdefault(as_list(cpus), []).append(device)
    return "; ".join(
        f"device{'s' if len(its) > 1 else ''} {as_list(its)} near cores {cpus}" for cpus, its in nodes.items()
    )


_Unfit = tuple[str, str, str, list[int]]


def _unfitting(devices: Sequence[Mapping[str, Any]], wants: Wants) -> Iterator[_Unfit]:
    """Devices that no rank should get."""
    for device in devices:
        index, who = [device["index"]], f"device {device['index']}"
        if device.get("error"):
            yield "health", f"{who} cannot be read: {device['error']}", "reset it, or restart the host", index
            continue
        strangers = [process for process in device["processes"] if not process["ours"]]
        if strangers:
            names = "; ".join(map(_stranger, strangers[:3])) + ("; ..." if len(strangers) > 3 else "")
            yield "strangers", f"{who} is in use by {names}", "wait for their end, or ask their owner", index
        if device["row_remap_failed"]:
            yield "health", f"{who} could not replace failing memory rows", "have it replaced", index
        if device["partitioned"]:
            yield "health", f"{who} is partitioned (MIG): no part of it is the chip", _WHOLE, index
    wrong: dict[str, list[int]] = {}
    for device in devices:
        if device["name"] and not is_named(device["name"], wants.hardware, wants.chips.get(wants.hardware, ())):
            wrong.setdefault(device["name"], []).append(device["index"])
    for name, indexes in wrong.items():
        are = f"{_are(indexes)} a" if len(indexes) == 1 else _are(indexes)
        yield "model", f"{_who(indexes)} {are} {name}, not {wants.hardware}", _right_name(name, wants), indexes


_WHOLE = "switch its partitioning off"


def _stranger(process: Mapping[str, Any]) -> str:
    owner = f" of {process['user']}" if process.get("user") else ""
    memory = f", {process['memory']:.0f} MiB" if process.get("memory") else ""
    return f"{process.get('name') or 'a process'} (pid {process['pid']}{owner}{memory})"


def _who(indexes: Sequence[int]) -> str:
    return f"device{'s' if len(indexes) > 1 else ''} {', '.join(map(str, indexes))}"


def _are(indexes: Sequence[int]) -> str:
    return "is" if len(indexes) == 1 else "are"


def is_named(name: str, chip: str, patterns: Sequence[str]) -> bool:
    """Whether what the vendor's tool calls a device is that chip: by its patterns, else by the chip's own name."""
    if patterns:
        return any(re.search(pattern, name, re.IGNORECASE) for pattern in patterns)
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(chip)}(?![A-Za-z0-9])", name, re.IGNORECASE) is not None


def _right_name(name: str, wants: Wants) -> str:
    fitting = [chip for chip, patterns in wants.chips.items() if is_named(name, chip, patterns)]
    if fitting:
        return f"say --hw={fitting[0]}"
    return f"say which chip it is with --hw, or add the name to chips.{wants.hardware}.names in vendor.toml"


def _degraded(devices: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Of devices that have the same, one sentence."""
    linked = any(device["links"] for device in devices)
    alike: dict[tuple[str, str, str], list[int]] = {}
    for device in devices:
        for said in _weaknesses(device, linked=linked):
            alike.setdefault(said, []).append(device["index"])
    for (beginning, end, remedy), indexes in alike.items():
        one = len(indexes) == 1
        verbs = {"are": _are(indexes), "have": "has" if one else "have", "wait": "waits" if one else "wait"}
        yield beginning.format(who=_who(indexes), **verbs) + end, remedy


def _weaknesses(device: Mapping[str, Any], *, linked: bool) -> Iterator[tuple[str, str, str]]:
    """How a sentence begins and ends, and a remedy. Such a device computes, but perhaps not as its like."""
    if device["trouble"]:
        yield "the vendor's tool says of {who}: ", device["trouble"], "see the vendor's manual for it"
    if device["ecc_uncorrected"]:
        yield "{who} had ", f"{device['ecc_uncorrected']:g} uncorrected memory errors", "reset it; watch its count"
    if device["row_remap_pending"]:
        yield "{who} {wait} to replace failing memory rows", "", "reset it, or restart the host"
    # That a power limit holds is no fault of the cooling; one below the usual is told of by itself.
    if held := [reason for reason in device["throttle"] if reason != POWER_CAP]:
        yield "{who} {are} slowed down: ", ", ".join(held), "see its cooling and its power supply"
    if _is_below(device["power_limit"], device["usual_power_limit"]):
        limits = f"{device['power_limit']:g} W where {device['usual_power_limit']:g} W are usual"
        yield "{who} {are} limited to ", limits, "set the limit back: its figures are of a slower device"
    if _is_below(device["pcie_width"], device["best_pcie_width"]):
        lanes = f"{device['pcie_width']:g} of its {device['best_pcie_width']:g} PCIe lanes"
        yield "{who} {have} ", lanes, "put it in anew: a contact may be dirty, or a riser bent"
    if device["links_down"] and linked:
        # Never refused: where a bridge was never put in, its links look like those of a broken one.
        up = device["links"] or 0
        links = f"{up:g} of {up + device['links_down']:g} links to its like up"
        yield "{who} {have} ", links, "see its bridges and cables, and the host's kernel log"


def _is_below(now: float | None, usual: float | None) -> bool:
    return now is not None and usual is not None and now < usual


def meetings(met: Mapping[str, Mapping[str, str | None]], addresses: Mapping[str, str]) -> dict[str, list[Finding]]:
    """Who could not reach whom: a host that most could not reach is to blame, else the one that could not."""
    found: dict[str, list[Finding]] = {}
    for target, address in addresses.items():
        tried = [name for name, its in met.items() if target in its]
        missing = [name for name in tried if met[name][target]]
        if missing and 2 * len(missing) >= len(tried):
            whys = ", ".join(sorted({str(met[name][target]) for name in missing}))
            sentence = f"{some(missing)} cannot reach it at {address}: {whys}"
            found[target] = [Finding(target, "network", FAIL, sentence, _OPEN)]
    blamed = set(found)
    for name, its in met.items():
        if finding := _reach(name, {target: why for target, why in its.items() if target not in blamed}, addresses):
            found.setdefault(name, []).append(finding)
    return found


def _reach(name: str, its: Mapping[str, str | None], addresses: Mapping[str, str]) -> Finding | None:
    missing = {target: why for target, why in its.items() if why}
    if missing:
        texts = "; ".join(f"{addresses[target]}: {why}" for target, why in list(missing.items())[:3])
        return Finding(name, "network", FAIL, f"it cannot reach {some(list(missing))} ({texts})", _OPEN)
    others = len(set(its) - {name})
    return Finding(name, "network", OK, f"reaches {others} other" + "s" * (others > 1)) if others else None


_OPEN = "open TCP ports 20000-31999 between the hosts, or name the addresses at which they reach each other"
