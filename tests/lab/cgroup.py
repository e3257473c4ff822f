"""The control group of a host: what finds, freezes and ends all of its processes. Speaks both versions of cgroups."""

import contextlib
import os
import signal
import time
from pathlib import Path

from tests.helpers.waiting import until

CONTROLLERS = {"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids"}


def hierarchies() -> dict[str, Path]:
    """Mount options -> mount point: those of version 1, or, on a machine without them, version 2's single one as ''."""
    old, new = {}, {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ")
        point, (kind, _, options) = Path(left.split()[4]), right.split()
        if kind == "cgroup2":
            new[""] = point
        elif kind == "cgroup":
            kept = [word for word in options.split(",") if word in CONTROLLERS or word.startswith("name=")]
            old[",".join(kept)] = point
    return old if any("freezer" in options for options in old) else new


class Cgroup:
    """One group, in every hierarchy."""

    def __init__(self, name: str) -> None:
        self.folders = {options: root / name for options, root in hierarchies().items()}

    def create(self) -> None:
        for options, folder in self.folders.items():
            if "cpuset" in options:  # it must have CPUs before it can have processes
                _create_cpuset(folder)
            elif options:
                folder.mkdir(parents=True, exist_ok=True)
            else:
                _create_unified(folder)

    @property
    def doors(self) -> list[str]:
        """The files that a process writes 0 into to be in the group."""
        return [str(folder / "cgroup.procs") for folder in self.folders.values()]

    def freeze(self, frozen: bool) -> None:
        """Stop every process of the group, or let them go on; returns when it is so."""
        if (one := self.folders.get("")) is not None:
            control, word = "cgroup.freeze", str(int(frozen))
            state, expected = one / "cgroup.events", f"frozen {word}"
        else:
            one, control, word = self._of("freezer"), "freezer.state", "FROZEN" if frozen else "THAWED"
            state, expected = one / control, word
        (one / control).write_text(word)
        until(lambda: expected in state.read_text().splitlines(), f"{word} of the processes of {one}", 10)

    def pids(self) -> set[int]:
        """Every process in it and in the groups below it, containers among them."""
        found = set()
        for folder in self.folders.values():
            for file in folder.rglob("cgroup.procs"):
                with contextlib.suppress(OSError):
                    found |= {int(pid) for pid in file.read_text().split()}
        return found - {0}

    def kill(self, deadline_s: float = 10) -> None:
        deadline = time.monotonic() + deadline_s
        if self.pids():
            self.freeze(True)  # so that no process sees that another one has ended
        while (pids := self.pids()) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._thaw_all()
            time.sleep(0.01)

    def _thaw_all(self) -> None:
        """What is frozen does not even die; to thaw a group does not thaw a frozen one below it."""
        for name, word in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            for folder in self.folders.values():
                for file in folder.rglob(name):
                    with contextlib.suppress(OSError):
                        file.write_text(word)

    def remove(self) -> None:
        for folder in self.folders.values():
            for one in [*sorted((p for p in folder.rglob("*") if p.is_dir()), reverse=True), folder]:
                with contextlib.suppress(OSError):
                    one.rmdir()

    def _of(self, controller: str) -> Path:
        return next(folder for options, folder in self.folders.items() if controller in options.split(","))


def _create_cpuset(folder: Path) -> None:
    files = ("cpuset.cpus", "cpuset.mems")
    if not folder.is_dir():
        # Hosts boot at once, and one of them may have made the parent and not yet filled it.
        if not all((folder.parent / name).is_file() and (folder.parent / name).read_text().strip() for name in files):
            _create_cpuset(folder.parent)
        folder.mkdir(exist_ok=True)
    for name in files:
        (folder / name).write_text((folder.parent / name).read_text())


def _create_unified(folder: Path) -> None:
    """Every level hands its controllers on to the next."""
    folder.mkdir(parents=True, exist_ok=True)
    root = hierarchies()[""]
    for level in reversed([one for one in folder.parents if one == root or root in one.parents]):
        for controller in (level / "cgroup.controllers").read_text().split():
            with contextlib.suppress(OSError):
                (level / "cgroup.subtree_control").write_text(f"+{controller}")
