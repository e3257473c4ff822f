"""What boots a host: joins its control group, makes its namespaces, and is its first process.

Runs apart from the harness, on the standard library. Its standard input is the power line: a byte means that the
cable is plugged in, its end that the owner is gone, and then the host dies.
"""

import ctypes
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

NEW_CGROUP, NEW_UTS, NEW_IPC, NEW_PID, NEW_NET, NEW_MOUNT = (
    0x02000000, 0x04000000, 0x08000000, 0x20000000, 0x40000000, 0x00020000,
)  # fmt: skip
RDONLY, NOSUID, NODEV, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
DETACH = 2
PR_SET_PDEATHSIG = 1
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "fuse")
libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    check(libc.unshare(flags), "unshare")


def mount(source: str, target: Path | str, kind: str = "", flags: int = 0, options: str = "") -> None:
    Path(target).mkdir(parents=True, exist_ok=True)
    arguments = [text.encode() or None for text in (source, str(target), kind)]
    done = libc.mount(*arguments, ctypes.c_ulong(flags), options.encode() or None)
    check(done, f"mount {source} on {target}")


def bind(source: str, target: Path | str, read_only: bool = False) -> None:
    mount(source, target, flags=BIND)
    if read_only:
        mount("", target, flags=BIND | REMOUNT | RDONLY)


def make_root(host: dict[str, Any]) -> None:
    """The machine's own file system under a layer of the host's, with kernel file systems of its own."""
    root, disk = Path(host["root"]), host["disk"]
    mount("", "/", flags=REC | PRIVATE)
    mount("overlay", root, "overlay", options=f"lowerdir=/,upperdir={disk}/upper,workdir={disk}/work")
    mount("proc", root / "proc", "proc")
    mount("sysfs", root / "sys", "sysfs")
    make_cgroups(root / "sys/fs/cgroup", host["cgroups"])
    make_devices(root / "dev")
    mount("run", root / "run", "tmpfs", NOSUID | NODEV, "mode=755")
    (root / "run/sshd").mkdir(mode=0o755)
    (root / "run/lock").mkdir(mode=0o1777)
    mount("tmp", root / "tmp", "tmpfs", NOSUID | NODEV, "mode=1777,size=4g")
    for source, target, read_only in host["binds"]:
        bind(source, f"{root}{target}", read_only)


def make_cgroups(folder: Path, hierarchies: dict[str, str]) -> None:
    if "" in hierarchies:
        mount("cgroup2", folder, "cgroup2")
        # Only a group without processes of its own can hand controllers on to the groups of containers.
        (folder / "init").mkdir(exist_ok=True)
        (folder / "init/cgroup.procs").write_text("0")
        for controller in (folder / "cgroup.controllers").read_text().split():
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")
        return
    mount("cgroup", folder, "tmpfs", options="mode=755")
    for options, name in hierarchies.items():
        mount("cgroup", folder / name, "cgroup", options=options if "name=" not in options else f"none,{options}")


def make_devices(folder: Path) -> None:
    """Its own /dev: a device made on a host must not appear on the machine."""
    mount("dev", folder, "tmpfs", NOSUID, "mode=755,size=64k")
    for name in DEVICES:
        real = Path("/dev") / name
        if real.exists():
            os.mknod(folder / name, stat.S_IFCHR | 0o666, real.stat().st_rdev)
            (folder / name).chmod(0o666)
    mount("devpts", folder / "pts", "devpts", options="newinstance,ptmxmode=0666,mode=620,gid=5")
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd"}
    links |= {name: f"/proc/self/fd/{number}" for number, name in enumerate(("stdin", "stdout", "stderr"))}
    for name, target in links.items():
        (folder / name).symlink_to(target)
    mount("shm", folder / "shm", "tmpfs", NOSUID | NODEV, "mode=1777,size=4g")
    mount("mqueue", folder / "mqueue", "mqueue")


def enter_root(root: str) -> None:
    os.chdir(root)
    check(libc.pivot_root(b".", b"."), "pivot_root")
    check(libc.umount2(b".", DETACH), "umount")
    os.chdir("/")


def plug_in(host: dict[str, Any]) -> None:
    """Wait for the cable; no default route, so that nothing leaves the lab."""
    if not os.read(0, 1):
        os._exit(0)
    lines = ("link set lo up", f"addr add {host['address']} dev eth0", "link set eth0 up")
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines).encode() + b"\n", check=True)


def reap(*_: object) -> None:
    """Orphans become the first process's children: collect them, as init does."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def be_init(host: dict[str, Any], ready: int) -> None:
    check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")
    unshare(NEW_MOUNT | NEW_NET | NEW_UTS | NEW_IPC | NEW_CGROUP)
    os.write(ready, b"+")
    os.dup2(2, 1)
    os.setsid()
    socket.sethostname(host["name"])
    make_root(host)
    enter_root(host["root"])
    plug_in(host)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.spawnv(os.P_WAIT, host["sshd"][0], host["sshd"])  # its daemon listens a moment later
    signal.signal(signal.SIGCHLD, reap)
    reap()
    os.write(ready, b"+")
    os.close(ready)
    while os.read(0, 1):
        pass


def main() -> None:
    host = json.loads(Path(sys.argv[1]).read_text())
    for door in host["doors"]:
        Path(door).write_text("0")
    ready, tell = os.pipe()
    unshare(NEW_PID)
    pid = os.fork()
    if pid == 0:
        os.close(ready)
        try:
            be_init(host, tell)
        except OSError as problem:
            print(problem, file=sys.stderr, flush=True)
        finally:
            os._exit(1)
    os.close(tell)
    for line in (pid, "up"):
        if os.read(ready, 1):
            print(line, flush=True)
    os.dup2(2, 1)
    os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
