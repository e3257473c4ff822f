"""Collect the facts of this host that preflight needs before a run. The controller judges them.

``python -m flagperf_driver.node.preflight_facts`` reads requests as JSON lines from stdin and ends with stdin:
``ping`` returns the clock, ``check`` returns the facts of ``collect_facts``, ``listen`` opens a port, and ``connect``
tries to reach the ports of other hosts.
"""

from __future__ import annotations

import json
import os
import pwd
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

from flagperf_driver.node import lease, orphans, ports, processes
from flagperf_driver.node.folder import cache_root, scratch
from flagperf_driver.node.sampling import load, topology
from flagperf_driver.node.sampling.foreign_processes import is_elsewhere, serves_others

_PROBE_BYTES = 1 << 16
_LISTEN_S = 60.0
_SUDO = ("sudo", "-n", "-l", "/sbin/sysctl", "vm.drop_caches=3")
_SUDO_S = 10.0
_DRIVER_S = 30.0
"""Of eight devices that nobody holds open the driver wakes one after the other."""


def collect_facts(wants: Mapping[str, Any]) -> Mapping[str, Any]:
    """All facts; one that cannot be had says why in its place."""
    survey = load.Survey()
    left = orphans.remove(wants.get("docker"))
    docker = _docker(wants["docker"], wants.get("image")) if wants.get("docker") else None
    folders = {"cache": cache_root(), "scratch": scratch().parent}
    if wants.get("folder"):
        folders["results"] = Path(wants["folder"])
    if docker and docker.get("root"):
        folders["docker"] = Path(docker["root"])
    return {
        "python": "{}.{}.{}".format(*sys.version_info),
        "executable": sys.executable,
        "hostname": os.uname().nodename,
        "user": _user(os.geteuid()),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _memory(),
        "disks": [_disk(what, folder, writable=what != "docker") for what, folder in folders.items()],
        "docker": docker,
        "devices": _devices(wants) if wants.get("nvml") or wants.get("probe") else None,
        "data": [_data(item) for item in wants.get("data", ())],
        "caches": _may_clear_caches() if wants.get("clear_caches") else None,
        "port": _free_port(),
        "leftovers": left,
        "load": survey.result(),
    }


def _memory() -> Mapping[str, Any]:
    """Bytes that are free now and in all, a control group's limit taken into account."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    kib = {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1}
    total, free = kib["MemTotal"] << 10, kib["MemAvailable"] << 10
    for limit, used in _group_limits():
        total, free = min(total, limit), min(free, max(0, limit - used))
    return {"total": total, "free": free}


def _group_limits() -> Iterator[tuple[int, int]]:
    """Limit and use of the memory groups that this process is in, and of those above them."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names, root = ("memory.max", "memory.current"), Path("/sys/fs/cgroup")
        elif "memory" in controllers.split(","):
            names, root = ("memory.limit_in_bytes", "memory.usage_in_bytes"), Path("/sys/fs/cgroup/memory")
        else:
            continue
        folder = root / path.lstrip("/")
        for place in [folder, *folder.parents]:
            if root not in [place, *place.parents]:
                break
            try:
                limit, used = ((place / name).read_text().strip() for name in names)
            except OSError:
                continue
            if limit != "max":
                yield int(limit), int(used)


def _disk(what: str, folder: Path, *, writable: bool) -> Mapping[str, Any]:
    """Space where the folder is or will be, and whether something can be written there."""
    fact: dict[str, Any] = {"what": what, "path": str(folder), "error": None}
    try:
        if writable:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=str(folder), prefix=".flagperf-") as probe:
                probe.write(b"\0" * _PROBE_BYTES)
                probe.flush()
        usage = shutil.disk_usage(str(folder))
        fact.update(free=usage.free, total=usage.total, device=os.stat(str(folder)).st_dev)  # noqa: PTH116
    except OSError as error:
        fact["error"] = error.strerror or str(error)
    return fact


def _docker(path: str, image: str | None) -> dict[str, Any]:
    from flagperf_driver.node.docker_engine import DockerEngine, EngineError

    engine = DockerEngine(path)
    try:
        there = engine.image(image) is not None if image else None
        return {"version": engine.version(), "root": engine.data_root(), "image": there, "error": None}
    except EngineError as error:
        return {"version": None, "root": None, "image": None, "error": str(error)}


def _devices(wants: Mapping[str, Any]) -> dict[str, Any]:
    """What the vendor's own tools say of each device, and of each process on one whose it is."""
    survey = _surveyed(wants)
    usable = os.sched_getaffinity(0)
    for device in survey["devices"]:
        device["near"] = topology.near(device.get("pci"), usable)
        device["processes"] = list(filter(_may_be_a_stranger, device["processes"]))
        leased = _is_leased(device["index"])
        for process in device["processes"]:
            # A round's lease is waited for; whatever a dead round left has just been removed.
            process["own"] = leased or processes.log_dir_of(process["pid"]) is not None
            process["user"] = _owner(process["pid"])
    return survey


def _may_be_a_stranger(process: Mapping[str, Any]) -> bool:
    return not serves_others(str(process.get("name"))) and not is_elsewhere(process["pid"])


def _surveyed(wants: Mapping[str, Any]) -> dict[str, Any]:
    """By NVML, or else by the vendor's tool, as in a round; ``instead`` says why by the tool."""
    why_not = None
    if wants.get("nvml"):
        from flagperf_driver.node.sampling.nvml import facts

        survey = _in_time(facts.survey)
        if not survey["error"] or not wants.get("probe"):
            return {**survey, "fallback_reason": None}
        why_not = survey["error"]
    from flagperf_driver.node.sampling import probe

    survey = probe.survey(str(Path(__file__).resolve().parents[2] / wants["probe"]))
    if why_not and survey["error"]:
        return {**survey, "error": f"{why_not}; {survey['error']}", "fallback_reason": None}
    return {**survey, "fallback_reason": why_not}


def _in_time(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A driver that hangs holds up its own thread and nothing else."""
    found: list[dict[str, Any]] = []

    def answer() -> None:
        try:
            found.append(ask())
        except Exception as error:  # a driver of its own kind: nothing else is known of it
            found.append(_no_answer(f"NVML: {type(error).__name__}: {error}"))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    thread.join(_DRIVER_S)
    return found[0] if found else _no_answer(f"NVML did not answer within {_DRIVER_S:g} s: the driver hangs")


def _no_answer(why: str) -> dict[str, Any]:
    return {"driver": None, "devices": [], "error": why}


def _is_leased(index: int) -> bool:
    """Whether a round of anybody's holds the device; asked without touching the lock."""
    folder = lease.default_directory()
    held = _locked_inodes()
    for name in (f"device{index}.lock", "host.lock"):
        try:
            status = (folder / name).stat()
        except OSError:
            continue
        kinds = held.get((os.major(status.st_dev), os.minor(status.st_dev), status.st_ino), set())
        if "WRITE" in kinds:
            return True
    return False


def _locked_inodes() -> dict[tuple[int, int, int], set[str]]:
    found: dict[tuple[int, int, int], set[str]] = {}
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK":
            major, minor, inode = words[5].split(":")
            found.setdefault((int(major, 16), int(minor, 16), int(inode)), set()).add(words[3])
    return found


def _owner(pid: int) -> str | None:
    try:
        return _user(Path(f"/proc/{pid}").stat().st_uid)
    except OSError:
        return None


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _data(item: Mapping[str, Any]) -> Mapping[str, Any]:
    from flagperf_driver.node import manifest  # slow to import, and few hosts have data to check

    return {"data_dir": item["data_dir"], "problems": manifest.verify(item["data_dir"], item["entries"])}


def _may_clear_caches() -> bool:
    if os.access("/proc/sys/vm/drop_caches", os.W_OK):
        return True
    try:
        done = subprocess.run(_SUDO, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_SUDO_S)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def _free_port() -> int | None:
    try:
        return ports.free_port()
    except OSError:
        return None


class Meeting:
    """A port where other hosts find this one and nobody else: it says a word that only we know."""

    def __init__(self) -> None:
        self.token = os.urandom(8).hex()
        self._socket = _listener()
        threading.Thread(target=self._welcome, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def _welcome(self) -> None:
        while True:
            try:
                guest, _ = self._socket.accept()
                guest.settimeout(_LISTEN_S)
                with guest:
                    guest.sendall(self.token.encode())
            except OSError:
                continue


def _listener() -> socket.socket:
    """Where the ranks will meet, so that a firewall says the same to both; for addresses of both kinds."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    for port in ports.candidates():
        try:
            return socket.create_server(("", port), family=family, backlog=256, dualstack_ipv6=both)
        except OSError:
            continue
    return socket.create_server(("", 0), backlog=256)


class Visit:
    """One connection to another host's meeting place, without waiting."""

    def __init__(self, place: Mapping[str, Any]) -> None:
        self.name = str(place["name"])
        self._token = str(place["token"])
        self._heard = b""
        self.problem: str | None = "no answer in time"
        self.socket: socket.socket | None = None
        try:
            kind, _, _, _, address = socket.getaddrinfo(place["address"], place["port"], type=socket.SOCK_STREAM)[0]
            self.socket = socket.socket(kind, socket.SOCK_STREAM)
            self.socket.setblocking(False)
            self.socket.connect_ex(address)
        except OSError as error:
            self.problem = f"{place['address']}: {error.strerror or error}"
            self.close()

    def go_on(self) -> bool:
        """Read what there is; whether it is over."""
        assert self.socket is not None
        try:
            chunk = self.socket.recv(64)
        except BlockingIOError:
            return False
        except OSError as error:
            self.problem = (error.strerror or str(error)).lower()
            return True
        self._heard += chunk
        if chunk and len(self._heard) < len(self._token):
            return False
        right = self._heard == self._token.encode()
        self.problem = None if right else "another machine, or another program, answers there"
        return True

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None


def connect(places: Sequence[Mapping[str, Any]], timeout_s: float) -> dict[str, str]:
    """Which of the places cannot be reached from here, and why; all are tried at once."""
    deadline = time.monotonic() + timeout_s
    visits = [Visit(place) for place in places]
    with selectors.DefaultSelector() as selector:
        for visit in visits:
            if visit.socket is not None:
                selector.register(visit.socket, selectors.EVENT_READ, visit)
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(deadline - time.monotonic()):
                if key.data.go_on():
                    selector.unregister(key.fileobj)
                    key.data.close()
    for visit in visits:
        visit.close()
    return {visit.name: visit.problem for visit in visits if visit.problem}


def answer(message: Mapping[str, Any], meetings: list[Meeting]) -> dict[str, Any]:
    if message["op"] == "ping":
        return {"type": "pong", "t": message["t"], "clock_ms": time.time() * 1000}
    if message["op"] == "listen":
        meetings.append(Meeting())
        return {"type": "listening", "port": meetings[-1].port, "token": meetings[-1].token}
    if message["op"] == "connect":
        return {"type": "connected", "failed": connect(message["places"], message["timeout_s"])}
    return {"type": "facts", **collect_facts(message["options"])}


def main() -> None:
    meetings: list[Meeting] = []
    line_of: Callable[[], bytes] = sys.stdin.buffer.readline
    for line in iter(line_of, b""):
        sys.stdout.write(json.dumps(answer(json.loads(line), meetings)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
