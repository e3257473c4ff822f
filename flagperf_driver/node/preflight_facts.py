"""Collect the facts of this host that preflight needs before a run. The controller judges them.

``python -m flagperf_driver.node.preflight_facts`` reads requests as JSON lines from stdin and ends with stdin:
``ping`` returns the clock, ``check`` returns the facts of ``collect_facts`` and may open a port, and ``connect`` tries
to reach the ports of other hosts.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from flagperf_driver import ports
from flagperf_driver.node import device_lease, orphans, processes
from flagperf_driver.node.agent import oom
from flagperf_driver.node.folder import cache_root, has_no_inodes, scratch
from flagperf_driver.node.sampling import load, topology
from flagperf_driver.node.sampling.foreign_processes import is_elsewhere, serves_others
from flagperf_driver.node.users import user_name

_PROBE_BYTES = 1 << 16
_LISTEN_S = 60.0
_ACCEPT_AGAIN_S = 0.1
_SUDO = ("sudo", "-n", "-l", "/sbin/sysctl", "vm.drop_caches=3")
_SUDO_S = 10.0
_DRIVER_S = 30.0
"""Maximum time for a driver: it wakes up idle devices one after the other."""


def collect_facts(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return all facts; in place of a missing fact, the reason."""
    survey = load.Survey()
    server = TokenServer() if options.get("listen") else None
    leftovers = orphans.remove(options.get("docker"))
    docker = _docker(options["docker"], options.get("image")) if options.get("docker") else None
    folders = {"cache": cache_root(), "scratch": scratch().parent}
    if options.get("folder"):
        folders["results"] = Path(options["folder"])
    if docker and docker.get("root"):
        folders["docker"] = Path(docker["root"])
    return {
        "python": "{}.{}.{}".format(*sys.version_info),
        "executable": sys.executable,
        "hostname": os.uname().nodename,
        "user": user_name(os.geteuid()),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _memory(),
        "disks": [_disk(what, folder, writable=what != "docker") for what, folder in folders.items()],
        "docker": docker,
        "apptainer": _apptainer(options["image"]) if options.get("apptainer") else None,
        "devices": _devices(options) if options.get("nvml") or options.get("probe") else None,
        "data": [_data(item) for item in options.get("data", ())],
        "caches": _may_clear_caches() if options.get("clear_caches") else None,
        "port": _free_port(),
        "leftovers": leftovers,
        "listening": {"port": server.port, "token": server.token} if server else None,
        "load": survey.result(),
    }


def _memory() -> Mapping[str, Any]:
    """Return the total and the available memory in bytes, within the limits of the control groups."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    kib = {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1}
    total, free = kib["MemTotal"] << 10, kib["MemAvailable"] << 10
    for folder, limit in oom.limited_groups():
        used = max(oom.number_in(folder / name) for name in ("memory.current", "memory.usage_in_bytes"))
        total, free = min(total, limit), min(free, max(0, limit - used))
    return {"total": total, "free": free}


def _disk(what: str, folder: Path, *, writable: bool) -> Mapping[str, Any]:
    """Return the disk space for the folder, and the error if the folder is not writable."""
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
        is_full_of_files = error.errno == errno.ENOSPC and has_no_inodes(folder)
        fact["error"] = "no inodes left: there are too many files" if is_full_of_files else error.strerror or str(error)
    return fact


def _docker(path: str, image: str | None) -> dict[str, Any]:
    from flagperf_driver.node.docker_engine import DockerEngine, EngineError

    engine = DockerEngine(path)
    try:
        has_image = engine.image(image) is not None if image else None
        return {"version": engine.version(), "root": engine.data_root(), "image": has_image, "error": None}
    except EngineError as error:
        return {"version": None, "root": None, "image": None, "error": str(error)}


def _apptainer(image: str) -> dict[str, Any]:
    from flagperf_driver.node import apptainer

    return apptainer.facts(image)


def _devices(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of each device, and the owner of each process on it."""
    survey = _survey(options)
    usable = os.sched_getaffinity(0)
    for device in survey["devices"]:
        device["near"] = topology.near(device.get("pci"), usable)
        device["processes"] = [
            one for one in device["processes"] if not (serves_others(str(one.get("name"))) or is_elsewhere(one["pid"]))
        ]
        leased = _is_leased(device["index"])
        for process in device["processes"]:
            # A run waits for leased devices; leftovers of dead rounds have just been removed.
            process["own"] = leased or processes.log_dir_of(process["pid"]) is not None
            process["user"] = _owner(process["pid"])
    return survey


def _survey(options: Mapping[str, Any]) -> dict[str, Any]:
    """Read the devices with NVML, else with the vendor's tool; then ``fallback_reason`` is NVML's error."""
    nvml_error = None
    if options.get("nvml"):
        from flagperf_driver.node.sampling.nvml import facts

        survey = _in_time(facts.survey)
        if not survey["error"] or not options.get("probe"):
            return {**survey, "fallback_reason": None}
        nvml_error = survey["error"]
    from flagperf_driver.node.sampling import probe

    survey = probe.survey(str(Path(__file__).resolve().parents[2] / options["probe"]))
    if nvml_error and survey["error"]:
        return {**survey, "error": f"{nvml_error}; {survey['error']}", "fallback_reason": None}
    return {**survey, "fallback_reason": nvml_error}


def _in_time(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Call ``ask`` in a thread, so that a driver that hangs does not block preflight."""
    answers: list[dict[str, Any]] = []

    def answer() -> None:
        try:
            answers.append(ask())
        except Exception as error:  # a broken driver may raise anything
            answers.append(_no_answer(f"NVML: {type(error).__name__}: {error}"))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    thread.join(_DRIVER_S)
    return answers[0] if answers else _no_answer(f"NVML did not answer within {_DRIVER_S:g} s: the driver hangs")


def _no_answer(reason: str) -> dict[str, Any]:
    return {"driver": None, "devices": [], "error": reason}


def _is_leased(index: int) -> bool:
    """Return True if a round of any user holds the device; read from /proc/locks, without touching the lock."""
    folder = device_lease.default_directory()
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
    locks: dict[tuple[int, int, int], set[str]] = {}
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK":
            major, minor, inode = words[5].split(":")
            locks.setdefault((int(major, 16), int(minor, 16), int(inode)), set()).add(words[3])
    return locks


def _owner(pid: int) -> str | None:
    try:
        return user_name(Path(f"/proc/{pid}").stat().st_uid)
    except OSError:
        return None


def _data(item: Mapping[str, Any]) -> Mapping[str, Any]:
    from flagperf_driver.node import manifest  # slow to import, and few hosts have data to check

    def report(**amounts: Mapping[str, int]) -> None:
        _send({"type": "checking", "data_dir": item["data_dir"], **amounts})

    return {"data_dir": item["data_dir"], "problems": manifest.verify(item["data_dir"], item["entries"], report)}


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


class TokenServer:
    """A port that sends a secret token, so that other hosts can verify that they reached this host."""

    def __init__(self) -> None:
        self.token = os.urandom(8).hex()
        self._socket = _listener()
        threading.Thread(target=self._send_token, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def _send_token(self) -> None:
        while True:
            try:
                visitor, _ = self._socket.accept()
            except OSError:
                time.sleep(_ACCEPT_AGAIN_S)  # as without a free descriptor
                continue
            with visitor, suppress(OSError):
                visitor.settimeout(_LISTEN_S)
                visitor.sendall(self.token.encode())


def _listener() -> socket.socket:
    """Listen on a port of the ranks' range, so that a firewall treats both alike; on IPv4 and IPv6."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    for port in ports.candidates():
        try:
            return socket.create_server(("", port), family=family, backlog=256, dualstack_ipv6=both)
        except OSError:
            continue
    return socket.create_server(("", 0), backlog=256)


def connect(places: Sequence[Mapping[str, Any]], timeout_s: float) -> dict[str, str]:
    """Try to reach all places at once; return the problem for each place that cannot be reached."""
    with ThreadPoolExecutor(max(1, len(places))) as pool:
        problems = pool.map(lambda place: _visit(place, timeout_s), places)
        return {str(place["name"]): problem for place, problem in zip(places, problems) if problem}


def _visit(place: Mapping[str, Any], timeout_s: float) -> str | None:
    """Return why the place cannot be reached; None if it sends its token."""
    expected = str(place["token"]).encode()
    try:
        with ports.reach(place["address"], place["port"], timeout_s) as there:
            received = there.makefile("rb").read(len(expected))
    except socket.gaierror as error:
        return f"{place['address']}: {error.strerror}"
    except socket.timeout:
        return "no answer in time"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None if received == expected else "another machine or program answers at this address"


def obey(order: Mapping[str, Any]) -> None:
    if order["op"] == "ping":
        _send({"type": "pong", "t": order["t"], "clock_ms": time.time() * 1000})
    elif order["op"] == "connect":
        _send({"type": "connected", "failed": connect(order["places"], order["timeout_s"])})
    else:
        threading.Thread(target=_check, args=[order["options"]], daemon=True).start()


def _check(options: Mapping[str, Any]) -> None:
    try:
        _send({"type": "facts", **collect_facts(options)})
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def main() -> None:
    read_line: Callable[[], bytes] = sys.stdin.buffer.readline
    for line in iter(read_line, b""):
        obey(json.loads(line))


def _send(message: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
