"""Findings about a host from the facts that it reports: Python, clock, cores, memory, load, disks, data, network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_flagperf.engines import FAIL, OK, WARN, Finding
from pytest_flagperf.problems import some

from . import device_rules
from .host_requirements import HostRequirements, Thresholds

_GIB = float(1 << 30)
LOAD = "load"

_Row = tuple[str, str, str, str]
"""Kind, level, sentence and remedy."""


def host_findings(
    host: str, facts: Mapping[str, Any], request: HostRequirements, clock: tuple[float, float] | None = None
) -> Iterator[Finding]:
    """Yield the findings from a host's facts."""
    for kind, level, sentence, remedy in _basic_findings(facts, request, clock):
        yield Finding(host, kind, level, sentence, remedy)
    if facts["devices"]:
        yield from device_rules.device_findings(host, facts["devices"], facts["cores"], request)
    for kind, level, sentence, remedy in _optional_findings(facts, request):
        yield Finding(host, kind, level, sentence, remedy)


def _basic_findings(
    facts: Mapping[str, Any], request: HostRequirements, clock: tuple[float, float] | None
) -> Iterator[_Row]:
    yield _python(facts["python"], facts["executable"])
    if clock:
        yield _clock(*clock, request.limits)
    yield _cores(facts["cores"], request)
    yield _memory(facts["memory"], request)
    yield from _load(facts["load"], request.limits)
    yield from _disks(facts["disks"], request.limits)
    if facts["port"] is None:
        yield "port", FAIL, "no free port: tried 100 ports in 20000-31999", "check what listens there: ss -ltnp"
    else:
        yield "port", OK, "free", ""


def _python(version: str, executable: str) -> _Row:
    if tuple(map(int, version.split(".")[:2])) >= (3, 8):
        return "python", OK, version, ""
    return "python", FAIL, f"{executable} is Python {version}", NEWER


NEWER = "Python >= 3.8 is required: install it there, or set its path with python = ... in [cluster]"


def _clock(offset_s: float, doubt_s: float, limits: Thresholds) -> _Row:
    if abs(offset_s) <= limits.clock_s + doubt_s:
        return "clock", OK, f"{round(offset_s * 1000):+d} ms", ""
    direction = "ahead of" if offset_s > 0 else "behind"
    sentence = f"{_duration(abs(offset_s))} {direction} this machine's clock (± {doubt_s * 1000:.0f} ms)"
    return "clock", WARN, sentence, "the offset is subtracted from all times; synchronize the clock with chrony or ntp"


def _duration(seconds: float) -> str:
    for unit, size, least in (("days", 86400.0, 172800.0), ("h", 3600.0, 3580.0), ("min", 60.0, 59.5)):
        if seconds >= least:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2f} s"


_FEWER = "request fewer processes with --nodes=NxP"


def _cores(cores: int, request: HostRequirements) -> _Row:
    if cores >= request.nproc:
        return "cores", OK, str(cores), ""
    return "cores", WARN, f"{cores} for {request.nproc} processes", _FEWER


def _memory(memory: Mapping[str, int], request: HostRequirements) -> _Row:
    free, per_process = memory["free"] / _GIB, memory["free"] / _GIB / request.nproc
    if per_process >= request.limits.memory_warn_gib:
        return "memory", OK, f"{_gib(free)} free", ""
    sentence = f"{_gib(free)} of {_gib(memory['total'] / _GIB)} free, for {request.nproc} processes"
    level = FAIL if per_process < request.limits.memory_fail_gib else WARN
    if memory["total"] / _GIB / request.nproc < request.limits.memory_warn_gib:
        return "memory", level, sentence, _FEWER
    return "memory", level, sentence, "check what uses it: ps -eo pid,user,rss,args --sort=-rss | head"


def _load(load: Mapping[str, Any], limits: Thresholds) -> Iterator[_Row]:
    """Yield findings about other work on the cores."""
    used, cores = load["others"], load["cores"]
    text = f"other processes use {used:.1f} of {cores} cores"
    if used < limits.others_warn * cores:
        yield LOAD, OK, text, ""
    else:
        names = ", ".join("{name} (pid {pid}, {cores:.1f})".format(**process) for process in load["busiest"])
        sentence = f"{text}, load average {load['load1']}" + (f"; busiest: {names}" if names else "")
        yield LOAD, WARN, sentence, "stop them, or wait until they end: the round may get the validity warning busy"
    if load["stolen"] >= limits.stolen_warn:
        sentence = f"the hypervisor gives {load['stolen'] * 100:.0f} % of the cores' working time to other machines"
        yield LOAD, WARN, sentence, "use a host with dedicated cores, or run when the other machines are idle"


def _disks(disks: Sequence[Mapping[str, Any]], limits: Thresholds) -> Iterator[_Row]:
    """Yield one finding for each file system, named by one of the run's folders on it."""
    seen: set[int] = set()
    for disk in disks:
        if disk["error"]:
            if disk["what"] != "docker":
                remedy = _FREE_SPACE[disk["what"]]
                yield "disk", FAIL, f"cannot write in {disk['path']}: {disk['error']}", remedy
        elif disk["device"] not in seen:
            seen.add(disk["device"])
            yield _disk(disk, limits)


_FREE_SPACE = {
    "cache": "free space there, or set FLAGPERF_CACHE in the host's environment to another folder",
    "scratch": "free space there, or set TMPDIR in the host's environment to another folder",
    "docker": "free space there: docker system prune",
    "results": "free space there, or choose another folder with --reports",
}


def _disk(disk: Mapping[str, Any], limits: Thresholds) -> _Row:
    free = disk["free"] / _GIB
    sentence = f"{_gib(free)} free in {disk['path']}"
    if free >= limits.disk_warn_gib:
        return "disk", OK, sentence, ""
    return "disk", FAIL if free < limits.disk_fail_gib else WARN, sentence, _FREE_SPACE[disk["what"]]


def _gib(size: float) -> str:
    return f"{size:.0f} GiB" if size >= 10 else f"{size:.1f} GiB" if size >= 1 else f"{size * 1024:.0f} MiB"


def _optional_findings(facts: Mapping[str, Any], request: HostRequirements) -> Iterator[_Row]:
    if facts["docker"]:
        yield from _containers("docker", facts["docker"], request)
    if facts["apptainer"]:
        yield from _containers("apptainer", facts["apptainer"], request)
    for data in facts["data"]:
        for problem in data["problems"]:
            yield "data", FAIL, problem, "copy the data there, or pass their folder with --data-dir"
        if not data["problems"]:
            yield "data", OK, data["data_dir"], ""
    if facts["leftovers"]:
        sentence = f"a dead run left {some(facts['leftovers'])}; removed"
        yield "leftovers", WARN, sentence, ""
    if facts["caches"] is False:
        sentence = "clear-caches is set, but only root can clear the file caches"
        yield "caches", WARN, sentence, "log in as root, or remove clear-caches from flagperf.toml"


def _containers(kind: str, facts: Mapping[str, Any], request: HostRequirements) -> Iterator[_Row]:
    if facts["error"]:
        yield kind, FAIL, facts["error"], ""
        return
    yield kind, OK, facts["version"], ""
    if request.engine is None:
        return
    image = request.engine.image
    if facts["image"]:
        yield "image", OK, image, ""
    elif request.engine.image_is_ours:
        yield "image", OK, f"{image} will be built", ""
    else:
        yield "image", WARN, f"{image} not found on the host; it will be pulled", ""


def network_findings(
    connections: Mapping[str, Mapping[str, str | None]], addresses: Mapping[str, str]
) -> dict[str, list[Finding]]:
    """Return the findings about connections between hosts, by host.

    ``connections`` has, by host and target, the reason why the target is unreachable, or None. A target that at least
    half of the hosts cannot reach gets the finding, otherwise the host that cannot reach it.
    """
    findings: dict[str, list[Finding]] = {}
    tried: dict[str, list[str]] = {target: [] for target in addresses}
    for name, results in connections.items():
        for target in results:
            tried[target].append(name)
    for target, address in addresses.items():
        missing = [name for name in tried[target] if connections[name][target]]
        if missing and 2 * len(missing) >= len(tried[target]):
            whys = ", ".join(sorted({str(connections[name][target]) for name in missing}))
            sentence = f"{some(missing)} cannot reach this host at {address}: {whys}"
            findings[target] = [Finding(target, "network", FAIL, sentence, _OPEN)]
    blamed = set(findings)
    for name, results in connections.items():
        if finding := _reach(name, {target: why for target, why in results.items() if target not in blamed}, addresses):
            findings.setdefault(name, []).append(finding)
    return findings


def _reach(name: str, results: Mapping[str, str | None], addresses: Mapping[str, str]) -> Finding | None:
    missing = {target: why for target, why in results.items() if why}
    if missing:
        texts = "; ".join(f"{addresses[target]}: {why}" for target, why in list(missing.items())[:3])
        return Finding(name, "network", FAIL, f"cannot reach {some(list(missing))} ({texts})", _OPEN)
    others = len(set(results) - {name})
    return Finding(name, "network", OK, f"reaches {others} other" + "s" * (others > 1)) if others else None


_OPEN = "open TCP ports 20000-31999 between the hosts, or list the addresses at which they reach each other"
