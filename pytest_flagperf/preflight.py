"""What must hold on every host before the first rank starts: looked at on all of them at once, told all at once."""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from .catalog import DataItem
from .cluster import Channel, Host, HostError, HostLost
from .cluster.deploy import Code, open_module
from .cluster.fleet import each

OK, WARN, FAIL = "ok", "warn", "fail"

_CHECKUP = "flagperf_driver.node.checkup"
_ANSWER_S = 60.0
_PINGS = 5
_CONNECT_S = 4.0
_NEIGHBOURS = 8
# Checksums of a data set of terabytes take their time.
_DATA_S = 4 * 3600.0
_GIB = float(1 << 30)


@dataclass(frozen=True)
class Limits:
    """From where on a host is warned of, or refused."""

    clock_s: float = 0.5  # warned of only: offsets are measured and taken out of the figures
    disk_warn_gib: float = 2.0
    disk_fail_gib: float = 0.25
    memory_warn_gib: float = 1.0  # for each process
    memory_fail_gib: float = 0.25


@dataclass(frozen=True)
class Data:
    """A data directory and what it must hold."""

    folder: str
    manifest: tuple[DataItem, ...]


@dataclass(frozen=True)
class Wants:
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
    docker: str | None = None  # the engine's socket, where containers are used
    image: str | None = None
    image_is_ours: bool = True  # built from the vendor's folder where it is not there; else pulled
    data: tuple[Data, ...] = ()
    clear_caches: bool = False
    folder: str | None = None  # where the run's results go, on this machine
    limits: Limits = Limits()


@dataclass(frozen=True)
class Finding:
    """One thing about one host. ``devices`` are those that are unfit, where it is about devices."""

    host: str
    kind: str
    level: str
    sentence: str
    remedy: str = ""
    devices: tuple[int, ...] = ()

    @property
    def fatal(self) -> bool:
        return self.level == FAIL


# -- looking -------------------------------------------------------------------------------------------------


def inspect(hosts: Sequence[Host], wants: Wants) -> list[Finding]:
    """Everything about every host, in the hosts' order; one process on each does all of it."""
    visits = {host: _Visit(host, wants) for host in hosts}

    def all_at_once(work: Callable[[_Visit], None]) -> None:
        each([host for host, visit in visits.items() if not visit.gone], lambda host: work(visits[host]))

    try:
        all_at_once(_Visit.look)
        if wants.nnodes > 1 and sum(not visit.gone for visit in visits.values()) > 1:
            all_at_once(_Visit.listen)
            places = [visit.place for visit in visits.values() if visit.place]
            all_at_once(lambda visit: visit.connect(_neighbours(visit.place, places)))
    finally:
        all_at_once(_Visit.close)
    met = _meetings({host.name: visits[host].met for host in hosts}, {host.name: host.address for host in hosts})
    return [finding for host in hosts for finding in (*visits[host].findings, *met.get(host.name, ()))]


def _neighbours(own: Mapping[str, Any] | None, places: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Itself and the next few in the round: among many hosts a connection of all with all finds nothing more."""
    start = next(number for number, place in enumerate(places) if place is own)
    return [places[(start + step) % len(places)] for step in range(min(len(places), _NEIGHBOURS + 1))]


class _Visit:
    """One host's checkup, from the connection to the last answer."""

    def __init__(self, host: Host, wants: Wants) -> None:
        self.host = host
        self.wants = wants
        self.channel: Channel | None = None
        self.gone = False
        self.findings: list[Finding] = []
        self.place: dict[str, Any] | None = None
        self.met: dict[str, str | None] = {}  # by name, why each could not be reached, if so

    def look(self) -> None:
        with self._excused():
            self.channel = open_module(self.host, self.wants.code, _CHECKUP)
            clock = None if self.host.here else self._clock()
            timeout_s = _DATA_S if self.wants.data else _ANSWER_S
            facts = self._ask({"op": "check", "wants": _asked(self.wants, self.host)}, "facts", timeout_s)
            self.findings = list(judge(self.host.name, facts, self.wants, clock))

    def listen(self) -> None:
        with self._excused():
            answer = self._ask({"op": "listen"}, "listening")
            self.place = {"name": self.host.name, "address": self.host.address, **answer}

    def connect(self, places: Sequence[Mapping[str, Any]]) -> None:
        with self._excused():
            order = {"op": "connect", "places": places, "timeout_s": _CONNECT_S}
            failed = self._ask(order, "connected")["failed"]
            self.met = {place["name"]: failed.get(place["name"]) for place in places}

    def close(self) -> None:
        if self.channel:
            with suppress(HostError):
                self.channel.close(1.0)

    def _clock(self) -> tuple[float, float]:
        """The host's clock minus ours, and how far that can be wrong, in seconds; from the quickest of some pings."""
        pings = []
        for _ in range(_PINGS):
            before = time.time()
            theirs = float(self._ask({"op": "ping", "t": before}, "pong")["clock_ms"]) / 1000
            after = time.time()
            pings.append(((after - before) / 2, theirs - (before + after) / 2))
        doubt, offset = min(pings)
        return offset, doubt

    def _ask(self, message: Mapping[str, Any], wanted: str, timeout_s: float = _ANSWER_S) -> dict[str, Any]:
        assert self.channel is not None
        self.channel.send(message)
        deadline = time.monotonic() + timeout_s
        while (answer := self.channel.receive(max(0.0, deadline - time.monotonic()))) is not None:
            if answer.get("type") == wanted:
                return {key: value for key, value in answer.items() if key != "type"}
        last = self.channel.complaint().strip().splitlines()[-1:] or ["it said nothing"]
        raise HostError(f"the checkup by {self.host.python} broke off: {last[0].strip()}")

    def _excused(self) -> _Excused:
        return _Excused(self)


class _Excused:
    """A host that fails is a finding, and is asked no more."""

    def __init__(self, visit: _Visit) -> None:
        self._visit = visit

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, (HostError, TimeoutError)):
            return False
        name = self._visit.host.name
        sentence = str(error).removeprefix(f"{name}: ")
        if isinstance(error, TimeoutError):
            sentence = "it did not answer the checkup in time: a disk or a device may hang"
        self._visit.findings.append(_unreachable(name, sentence, lost=isinstance(error, HostLost)))
        self._visit.close()
        self._visit.gone = True
        return True


# No such program; one whose words or modules are not those of a Python that is new enough.
_NO_PYTHON = re.compile(
    r"\b127\b|not found|No such file|[Uu]nknown option|python -h|SyntaxError|ImportError|ModuleNotFoundError"
)


def _unreachable(host: str, sentence: str, *, lost: bool) -> Finding:
    if _NO_PYTHON.search(sentence):
        return Finding(host, "python", FAIL, sentence, "" if "Python >= 3.8" in sentence else _NEWER)
    remedy = "see that it has power and network, and that sshd runs" if lost else ""
    return Finding(host, "host", FAIL, sentence, remedy)


def _asked(wants: Wants, host: Host) -> dict[str, Any]:
    return {
        "folder": wants.folder if host.here else None,
        "nvml": wants.nvml,
        "probe": wants.probe,
        "docker": wants.docker,
        "image": wants.image,
        "data": [{"data_dir": one.folder, "entries": _entries(one.manifest)} for one in wants.data],
        "clear_caches": wants.clear_caches,
    }


def _entries(manifest: Sequence[DataItem]) -> list[dict[str, Any]]:
    return [{key: value for key, value in asdict(item).items() if value is not None} for item in manifest]


# -- judging -------------------------------------------------------------------------------------------------

_Said = tuple[str, str, str, str]
"""Kind, level, sentence and remedy."""


def judge(
    host: str, facts: Mapping[str, Any], wants: Wants, clock: tuple[float, float] | None = None
) -> Iterator[Finding]:
    """What a host's facts mean for those who want to run there."""
    for kind, level, sentence, remedy in _place(facts, wants, clock):
        yield Finding(host, kind, level, sentence, remedy)
    if facts["devices"]:
        yield from _devices(host, facts["devices"], wants)
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
    return "python", FAIL, f"{executable} is Python {version}", _NEWER


_NEWER = "a Python >= 3.8 is needed: install one there, or name it with python = ... in [cluster]"


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
    if free >= limits.disk_warn_gib:
        return "disk", OK, f"{_gib(free)} free", ""
    level = FAIL if free < limits.disk_fail_gib else WARN
    return "disk", level, f"{_gib(free)} free in {disk['path']}", _NAME_ANOTHER[disk["what"]]


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
        sentence = f"a dead run had left {_some(facts['leftovers'])}; it is gone now"
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


def _devices(host: str, survey: Mapping[str, Any], wants: Wants) -> Iterator[Finding]:
    """Count, model, strangers and health: an unfit device matters as much as its lack is felt."""
    devices = survey["devices"]
    if survey["error"]:
        yield Finding(host, "devices", FAIL, survey["error"], "see that the vendor's driver works on that host")
        return
    unfit: set[int] = set()
    for kind, sentence, remedy, indexes in _unfitting(devices, wants):
        unfit.update(indexes)
        enough = len(devices) - len(unfit) >= wants.nproc and kind != "model"
        yield Finding(host, kind, WARN if enough else FAIL, sentence, remedy, tuple(indexes))
    for sentence, remedy in _degraded(devices):
        yield Finding(host, "health", WARN, sentence, remedy)
    if len(devices) < wants.nproc:
        sentence = f"{len(devices)} for {wants.nproc} processes"
        yield Finding(host, "devices", FAIL, sentence, "ask for fewer with --nodes=NxP, or for other hosts")
    elif wants.devices_per_host and len(devices) < wants.devices_per_host:
        sentence = f"{len(devices)} of the {wants.devices_per_host} that a host with {wants.hardware} has"
        yield Finding(host, "devices", WARN, sentence, "one may have failed: see the host's kernel log")
    else:
        names = ", ".join(sorted({str(device["name"]) for device in devices}))
        driver = f", driver {survey['driver']}" if survey["driver"] else ""
        yield Finding(host, "devices", OK, f"{len(devices)} {names}{driver}")


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
    wrong: dict[str, list[int]] = {}
    for device in devices:
        if device["name"] and not is_named(device["name"], wants.hardware, wants.chips.get(wants.hardware, ())):
            wrong.setdefault(device["name"], []).append(device["index"])
    for name, indexes in wrong.items():
        yield "model", f"{_numbers(indexes)} {name}, not {wants.hardware}", _right_name(name, wants), indexes


def _stranger(process: Mapping[str, Any]) -> str:
    owner = f" of {process['user']}" if process.get("user") else ""
    memory = f", {process['memory']} MiB" if process.get("memory") else ""
    return f"{process.get('name') or 'a process'} (pid {process['pid']}{owner}{memory})"


def _numbers(indexes: Sequence[int]) -> str:
    numbers = ", ".join(map(str, indexes))
    return f"device {numbers} is a" if len(indexes) == 1 else f"devices {numbers} are"


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
    for device in devices:
        who = f"device {device['index']}"
        if device["ecc_uncorrected"]:
            yield f"{who} had {device['ecc_uncorrected']} uncorrected memory errors", "reset it; watch its count"
        if device["row_remap_pending"]:
            yield f"{who} waits to replace failing memory rows", "reset it, or restart the host"
        if device["throttle"]:
            yield f"{who} is slowed down: {', '.join(device['throttle'])}", "see its cooling and its power supply"


def _meetings(met: Mapping[str, Mapping[str, str | None]], addresses: Mapping[str, str]) -> dict[str, list[Finding]]:
    """Who could not reach whom: a host that most could not reach is to blame, else the one that could not."""
    found: dict[str, list[Finding]] = {}
    for target, address in addresses.items():
        tried = [name for name, its in met.items() if target in its]
        missing = [name for name in tried if met[name][target]]
        if missing and 2 * len(missing) >= len(tried):
            whys = ", ".join(sorted({str(met[name][target]) for name in missing}))
            sentence = f"{_some(missing)} cannot reach it at {address}: {whys}"
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
        return Finding(name, "network", FAIL, f"it cannot reach {_some(list(missing))} ({texts})", _OPEN)
    others = len(set(its) - {name})
    return Finding(name, "network", OK, f"reaches {others} other" + "s" * (others > 1)) if others else None


_OPEN = "open TCP ports 20000-31999 between the hosts, or name the addresses at which they reach each other"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# -- telling -------------------------------------------------------------------------------------------------


def unfit_devices(findings: Iterable[Finding]) -> dict[str, set[int]]:
    """By host, the devices that no rank should get."""
    unfit: dict[str, set[int]] = {}
    for finding in findings:
        if finding.devices:
            unfit.setdefault(finding.host, set()).update(finding.devices)
    return unfit


def sentences(findings: Iterable[Finding], level: str = FAIL) -> list[str]:
    """What is of that level, a sentence each; what holds for many hosts is said once."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for one in findings:
        if one.level == level:
            text = f"{one.kind}: {one.sentence}" + (f" - {one.remedy}" if one.remedy else "")
            hosts.setdefault((one.kind, text), []).append(one.host)
    return [f"{_some(names)}: {text}" for (_, text), names in hosts.items()]


def lines(findings: Sequence[Finding], width: int = 100) -> list[str]:
    """Host by host for a terminal: what is well in short, then what is not and what to do."""
    width = min(width, 100)
    by_host: dict[str, list[Finding]] = {}
    for finding in findings:
        by_host.setdefault(finding.host, []).append(finding)
    shown = [line for host, its in by_host.items() for line in _block(host, its, width)]
    return [*shown, *_summary(by_host, width)]


def _block(host: str, findings: Sequence[Finding], width: int) -> Iterator[str]:
    yield host
    well = " · ".join(f"{one.kind} {one.sentence}" for one in findings if one.level == OK)
    yield from _wrapped("  ok    ", well, width)
    for level, word in ((WARN, "  warn  "), (FAIL, "  FAIL  ")):
        for one in findings:
            if one.level == level:
                yield from _wrapped(word, f"{one.kind}: {one.sentence}", width)
                yield from _wrapped("        -> ", one.remedy, width)


def _wrapped(start: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_on_hyphens=False,
        break_long_words=False,
    )


def _summary(by_host: Mapping[str, Sequence[Finding]], width: int) -> list[str]:
    bad = [host for host, its in by_host.items() if any(one.fatal for one in its)]
    warned = [host for host, its in by_host.items() if host not in bad and any(one.level == WARN for one in its)]
    count = f"{len(by_host)} host" + ("s" if len(by_host) != 1 else "")
    parts = [f"{len(by_host) - len(bad) - len(warned)} well"]
    parts += [f"{len(warned)} with a warning ({_some(warned)})"] if warned else []
    parts += [f"{len(bad)} unfit ({_some(bad)})"] if bad else []
    return _wrapped("", f"{count}: {', '.join(parts)}", width)
