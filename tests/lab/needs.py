"""What a machine must have to hold a lab, and how to get it."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

PROGRAMS = {
    "ip": "iproute2", "nsenter": "util-linux", "sshd": "openssh-server", "ssh": "openssh-client",
    "ssh-keygen": "openssh-client", "gcc": "gcc libc6-dev", "busybox": "busybox-static", "docker": "docker.io",
    "dockerd": "docker.io", "containerd": "docker.io", "runc": "docker.io",
}  # fmt: skip
SLURM = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client"}
CAP_SYS_ADMIN = 21
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=SYSTEM_PATH)


def path_of(name: str) -> str:
    found = program(name)
    assert found is not None, f"{name} is missing"
    return found


def capable(capability: int, which: str = "CapEff") -> bool:
    status = Path("/proc/self/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in status if line.startswith(f"{which}:"))
    return bool(mask >> capability & 1)


def missing() -> list[str]:
    """A sentence for each thing that is not there; empty when a lab can be made."""
    if not sys.platform.startswith("linux"):
        return [f"a lab's hosts are Linux namespaces, and this is {sys.platform}"]
    problems = []
    if os.geteuid() != 0:
        problems.append("a lab makes network interfaces and mounts: run as root (sudo)")
    elif not capable(CAP_SYS_ADMIN):
        problems.append("this root may not mount (no CAP_SYS_ADMIN): in a container, start it with --privileged")
    problems += missing_programs(PROGRAMS)
    filesystems = Path("/proc/filesystems").read_text().split()
    problems += [f"this kernel has no {one}" for one in ("overlay", "tmpfs") if one not in filesystems]
    return problems


def missing_programs(packages: Mapping[str, str]) -> list[str]:
    """A sentence for the programs that are not there, with their packages."""
    names = [name for name in packages if program(name) is None]
    install = " ".join(dict.fromkeys(packages[name] for name in names))
    return [f"missing {', '.join(names)}: apt-get install {install}"] if names else []


def require(config: pytest.Config, problems: Sequence[str], what: str = "") -> None:
    """Skip a test without what it needs, or fail it where skips count as errors."""
    if problems:
        if config.getini("strict"):
            pytest.fail(what + "; ".join(problems), pytrace=False)
        pytest.skip(what + "; ".join(problems))
