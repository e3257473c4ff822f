"""Where a lab stands on the machine: a number from which all of its names follow, how it is claimed and removed.

Run as a program it is a lab's reaper: it waits until its standard input ends, which is when the lab's owner is
gone, however it went, and removes what the owner left.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from tests.lab.cgroup import Cgroup, hierarchies

ROOT = Path("/run/flagperf-lab")  # not under TMPDIR: labs of all users must find each other
MAX_HOSTS = 300
MAX_LABS = 64
PREFIX = 22
"""The bits of an address that all hosts of a lab share."""


@dataclass(frozen=True)
class Place:
    """The names of one lab. An interface's name has at most 15 characters."""

    number: int

    @property
    def folder(self) -> Path:
        return ROOT / str(self.number)

    @property
    def disks(self) -> Path:
        """A tmpfs of the lab's own: a layer of an overlay may not lie on what it covers."""
        return self.folder / "disks"

    @property
    def name(self) -> str:
        """The bridge, and what every other name starts with."""
        return f"flab{self.number}"

    @property
    def _network(self) -> IPv4Address:
        """Each lab has 1,024 of the addresses 10.77.0.0/16."""
        return IPv4Address("10.77.0.0") + self.number * (1 << (32 - PREFIX))

    @property
    def subnet(self) -> str:
        return f"{self._network}/{PREFIX}"

    def address(self, index: int) -> str:
        """Of host number index, from 1 on; 0 is the machine itself."""
        return str(self._network + index + 1)

    def mac(self, index: int) -> str:
        """Always the same for a host: its neighbours remember it for seconds after a reboot."""
        return f"02:fb:77:{self.number:02x}:{index >> 8:02x}:{index & 255:02x}"

    def link(self, index: int) -> str:
        """The machine's end of a host's cable."""
        return f"{self.name}h{index}"

    def cgroup(self, host: str = "") -> Cgroup:
        return Cgroup(f"{self.name}/{host}".rstrip("/"))


def ip(*commands: str, force: bool = False) -> None:
    """Run ip's commands in one call; with force, continue after a failed command."""
    argv = ["ip", *(["-force"] if force else []), "-batch", "-"]
    done = subprocess.run(argv, input="\n".join(commands) + "\n", text=True, capture_output=True)
    if done.returncode and not force:
        raise RuntimeError(f"ip: {done.stderr.strip()} in {commands}")


def claim() -> tuple[Place, int]:
    """A free place and the lock that says it is taken; removes what dead labs left on the way."""
    ROOT.mkdir(mode=0o700, exist_ok=True)
    with _locked(ROOT / "lock"):
        for folder in ROOT.iterdir():
            if folder.name.isdigit() and (lock := _try_lock(folder / "lock")) is not None:
                _remove_dead(Place(int(folder.name)))
                os.close(lock)
        for number in range(MAX_LABS):
            place = Place(number)
            if place.folder.exists() or _routed(place):
                continue
            remove(place)  # a bridge without a folder has no owner
            if traces(place):
                continue  # something does not die: leave it alone
            place.disks.mkdir(parents=True, mode=0o700)
            lock = _try_lock(place.folder / "lock")
            assert lock is not None
            return place, lock
    raise RuntimeError(f"all {MAX_LABS} places for labs are taken: see {ROOT}")


def remove(place: Place) -> None:
    """All that a lab has: processes, cables, groups, mounts, files. Each may be missing."""
    group = place.cgroup()
    group.kill()
    group.remove()
    links = [link for link in os.listdir("/sys/class/net") if _belongs(link, place)]  # noqa: PTH208
    if links:
        ip(*(f"link del {link}" for link in links), force=True)
    for mounted in (f"{place.disks}", f"{place.folder}"):
        while os.path.ismount(mounted):
            subprocess.run(["umount", "--lazy", mounted], check=True)
    shutil.rmtree(place.folder, ignore_errors=True)


def traces(place: Place) -> list[str]:
    """What is left of a lab: empty after it was removed."""
    links = [f"link {link}" for link in os.listdir("/sys/class/net") if _belongs(link, place)]  # noqa: PTH208
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if f"{place.folder}/" in line]
    groups = [str(root / place.name) for root in hierarchies().values() if (root / place.name).exists()]
    return [*links, *mounts, *groups, *([str(place.folder)] if place.folder.exists() else [])]


def _belongs(link: str, place: Place) -> bool:
    return link == place.name or link.startswith(f"{place.name}h")


def _routed(place: Place) -> bool:
    """Whether the machine knows another way to these addresses than its default route."""
    argv = ["ip", "-4", "route", "show", "to", "match", place.subnet]
    routes = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    return any(not route.startswith("default") and place.name not in route.split() for route in routes)


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _try_lock(file: Path) -> int | None:
    """The lock's descriptor; None when a living lab holds it."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def start_reaper(place: Place, lock: int) -> subprocess.Popen[bytes]:
    """Start the reaper, which also holds the lock, so that no other process removes the lab."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.lab.place", str(place.number)],
        stdin=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        pass_fds=[lock],
        start_new_session=True,  # a Ctrl-C in the terminal is not for it
    )


def _remove_dead(place: Place) -> None:
    """Remove a lab whose owner died, and kill what uses its Slurm: without its slurmctld, an srun waits for ever."""
    from tests.helpers.processes import running

    for process in running() if place.folder.exists() else ():
        if process.environment.get("SLURM_CONF", "").startswith(f"{place.folder}/"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    remove(place)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    with _locked(ROOT / "lock"):  # or a new lab would claim the number in the middle of it
        _remove_dead(Place(int(sys.argv[1])))
