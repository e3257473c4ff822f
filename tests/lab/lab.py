"""A lab: hosts on a network of their own, and the switches that break them."""

import contextlib
import json
import os
import shlex
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Self, final

from pytest_flagperf.hosts.cluster import ClusterConfig
from tests.helpers.waiting import until
from tests.lab.built import built
from tests.lab.cgroup import hierarchies
from tests.lab.disk import Disk
from tests.lab.engine import BASE, WITH_PYTHON, Engine, container_options
from tests.lab.needs import SYSTEM_PATH, path_of
from tests.lab.nvml import Nvml
from tests.lab.place import MAX_HOSTS, PREFIX, Place, claim, ip, start_reaper
from tests.own_places import shared_cache

REPO = Path(__file__).resolve().parents[2]
CACHE = shared_cache()  # the path is the same on a host, what is there is not
PYTHON = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
USER = "root"
HOME = Path("/root")
SSHD_CONFIG = f"""\
HostKey /etc/ssh/ssh_host_ed25519_key
PidFile /run/sshd.pid
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 200
MaxSessions 200
PrintMotd no
PrintLastLog no
Subsystem sftp internal-sftp
SetEnv PATH={PYTHON.parent}:{SYSTEM_PATH}
Match User root
SetEnv PATH={PYTHON.parent}:{SYSTEM_PATH} FLAGPERF_CACHE={CACHE}
"""
SSHD = "/usr/sbin/sshd"


class Process(NamedTuple):
    """One of a host, by the number it has there."""

    pid: int
    cmdline: str


class Cluster(ClusterConfig):
    """How to reach the hosts, also as the text of a settings file."""

    def toml(self) -> str:
        names = ("hosts", "user", "port", "key", "known_hosts")
        return "[cluster]\n" + "".join(f"{name} = {json.dumps(getattr(self, name))}\n" for name in names)


class LabHost:
    """One host. Made by its lab; it has power from then on until the lab ends or a test takes it."""

    port = 22
    user = USER

    def __init__(self, place: Place, index: int) -> None:
        self.index = index
        self.name = f"h{index}"
        self.address = place.address(index)
        self.key = place.folder / "id_ed25519"
        self.known_hosts = place.folder / "known_hosts"
        self.disk = Disk(place.disks / self.name)
        self.engine = Engine(self)
        self.nvml = Nvml(self)
        self._place = place
        self._link = place.link(index)
        self._folder = place.folder / self.name
        self._cgroup = place.cgroup(self.name)
        self._power: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._worn = True

    # Power

    def boot(self) -> None:
        if self.on:
            return
        self._cgroup.create()
        root = self._folder / "root"
        root.mkdir(parents=True, exist_ok=True)
        binds = [
            (f"{self.disk.folder}/docker", "/var/lib/docker", False),
            (f"{self.disk.folder}/state", "/run/lab", True),
            (str(self._place.folder / "shared"), "/shared", False),
        ]
        # One by one: beside them a host may build others.
        environments = [path.parent for path in (CACHE / "venv").glob("pytorch-*/complete.json")]
        shown = _elsewhere([PYTHON.parents[1], *environments])
        binds += [(str(path), str(path), True) for path in shown]
        settings = {
            "name": self.name, "address": f"{self.address}/{PREFIX}", "root": str(root), "disk": str(self.disk.folder),
            "doors": self._cgroup.doors, "cgroups": {options: point.name for options, point in hierarchies().items()},
            "binds": binds, "sshd": [SSHD, "-E", "/var/log/sshd.log"],
        }  # fmt: skip
        (self._folder / "host.json").write_text(json.dumps(settings))
        with (self._folder / "console.log").open("ab") as console:
            self._power = subprocess.Popen(
                [str(PYTHON), "-ISB", str(Path(__file__).with_name("host_init.py")), str(self._folder / "host.json")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=console,
                env={"PATH": f"{PYTHON.parent}:{SYSTEM_PATH}", "HOME": "/root", "LANG": "C.UTF-8"},
                start_new_session=True,
            )
        assert self._power.stdin is not None
        assert self._power.stdout is not None
        self._pid = int(self._power.stdout.readline() or 0)
        if not self._pid:
            raise RuntimeError(f"{self.name} does not boot: {self.console()}")
        ip(
            f"link add {self._link} type veth peer name eth0 address {self._place.mac(self.index)} netns {self._pid}",
            f"link set {self._link} master {self._place.name} up",
        )
        self._power.stdin.write(b"+")
        self._power.stdin.flush()
        # Asking the network before the host is up would cost a second: that is how long a lost ARP request is missed.
        if not self._power.stdout.readline():
            raise RuntimeError(f"{self.name} does not boot: {self.console()}")
        # sshd goes into the background a moment before it listens.
        until(self.answers, f"sshd on {self.name}")
        self.nvml.boot()

    def power_off(self) -> None:
        self.wear()
        if self._power is None:
            return
        self._cgroup.kill()
        self._power.kill()
        self._power.communicate()
        self._power, self._pid = None, 0
        self._cgroup.remove()
        ip(f"link del {self._link}", force=True)

    @property
    def on(self) -> bool:
        return self._power is not None and self._power.poll() is None

    def console(self) -> str:
        file = self._folder / "console.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), timeout=0.2) as line:
            line.settimeout(1)
            return line.recv(4) == b"SSH-"
        return False

    # Looking at it

    @property
    def root(self) -> Path:
        """Its files, seen from the machine: `host.root / "etc/hosts"`. Absolute links in it lead to the machine's."""
        return Path(f"/proc/{self._pid}/root")

    def run(
        self,
        argv: Sequence[str],
        *,
        input: str | bytes | None = None,  # noqa: A002
        check: bool = True,
        timeout: float = 60,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run something on it, from the side: it takes neither ssh nor network, and works on a frozen host too."""
        sent = input.encode() if isinstance(input, str) else input
        done = subprocess.run(
            self._entering(argv), input=sent or b"", capture_output=True, timeout=timeout, env=self._env(env)
        )
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if check and done.returncode:
            raise RuntimeError(f"{self.name}: {shlex.join(argv)} exited {done.returncode}: {out}{err}")
        return subprocess.CompletedProcess(list(argv), done.returncode, out, err)

    def start(self, argv: Sequence[str], log: str = "/dev/null") -> None:
        join = 'while [ "$1" != -- ]; do echo 0 >"$1"; shift; done; shift; exec "$@"'
        leave = 'log=$1; shift; setsid "$@" </dev/null >>"$log" 2>&1 &'
        entering = self._entering(["sh", "-c", leave, "start", log, *argv])
        subprocess.run(["sh", "-c", join, "join", *self._cgroup.doors, "--", *entering], check=True, env=self._env())

    def _entering(self, argv: Sequence[str]) -> list[str]:
        if not self.on:
            raise RuntimeError(f"{self.name} has no power")
        return [path_of("nsenter"), f"--target={self._pid}", "--all", *argv]

    def _env(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return {"PATH": f"{PYTHON.parent}:{SYSTEM_PATH}", "HOME": "/root", "LANG": "C.UTF-8", **(more or {})}

    def processes(self) -> list[Process]:
        """All processes except the first, including those of containers; the names of zombies are in brackets."""
        found = []
        for folder in (self.root / "proc").iterdir():
            if not folder.name.isdigit() or folder.name == "1":
                continue
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                line = b" ".join(words).decode(errors="replace").strip()
                found.append(Process(int(folder.name), line or f"[{(folder / 'comm').read_text().strip()}]"))
        return sorted(found)

    def ssh(self, *command: str, user: str = USER) -> list[str]:
        """The argv that reaches it as a user would, with its key checked."""
        argv = ["ssh", "-F", "none", "-i", str(self.key), "-o", f"UserKnownHostsFile={self.known_hosts}"]
        argv += ["-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"]
        return [*argv, "-p", str(self.port), f"{user}@{self.address}", *command]

    # Switches

    def link(self, up: bool) -> None:
        """Pull its network cable out of the switch, or put it back."""
        self.wear()
        ip(f"link set {self._link} {'up' if up else 'down'}")

    def freeze(self) -> None:
        self.wear()
        self._cgroup.freeze(True)

    def thaw(self) -> None:
        self._cgroup.freeze(False)

    def clock(self, offset_s: float) -> None:
        """Let its wall clock be wrong by that, also for what runs: of programs started after the first such call."""
        self.wear()
        # Written in place: programs have mapped the file, and would crash if it were truncated.
        file = os.open(self.disk.folder / "state/clock", os.O_WRONLY | os.O_CREAT)
        os.write(file, struct.pack("<q", round(offset_s * 1e9)))
        os.close(file)
        library = self.root / "usr/lib/lab-clock.so"
        if not library.exists():
            library.write_bytes(built("clock").read_bytes())
            (self.root / "etc/ld.so.preload").write_text("/usr/lib/lab-clock.so\n")

    def limit_disk(self, path: str, num_bytes: int) -> None:
        """Put a small, empty file system at a path, with the path's permissions."""
        self.wear()
        self.run(["mkdir", "-p", path])
        mode = self.run(["stat", "-c", "%a", path]).stdout.strip()
        self.run(["mount", "-t", "tmpfs", "-o", f"size={num_bytes},mode={mode}", "disk", path])

    def kill_sshd_sessions(self) -> int:
        """End every ssh session, from the far side; says how many processes that took. What they ran lives on."""
        pids = [str(one.pid) for one in self.processes() if "sshd" in one.cmdline and "listener" not in one.cmdline]
        if pids:
            self.run(["kill", "-9", *pids], check=False)
        return len(pids)

    def add_user(self, name: str, docker: bool = False) -> None:
        """One who is not root, with the lab's key, maybe with the right to use docker."""
        self.wear()
        groups = ["-G", "docker"] if docker else []
        # With * no password matches, but unlike useradd's default it does not lock the account.
        self.run(["useradd", "--create-home", "--shell", "/bin/bash", "--password", "*", *groups, name])
        self.run(["rm", "-f", f"/home/{name}/.bashrc", f"/home/{name}/.profile"])
        self.run(["install", "-d", "-o", name, "-m", "700", f"/home/{name}/.ssh"])
        self.run(["install", "-o", name, "-m600", "/root/.ssh/authorized_keys", f"/home/{name}/.ssh/authorized_keys"])
        for folder in (PYTHON.parent, CACHE):  # Python may lie in root's home, which others may not enter
            there = [(one, self.root / one.relative_to("/")) for one in [folder, *folder.parents][:-1]]
            closed = [str(one) for one, path in there if path.is_dir() and not path.stat().st_mode & stat.S_IXOTH]
            if closed:
                self.run(["chmod", "o+x", *closed])

    def wear(self) -> None:
        """Say that the host is no longer as it was installed: the next test that asks for it gets it as new."""
        self._worn = True

    # Docker

    def docker(self) -> None:
        self.wear()
        self.engine.start()

    def kill_dockerd(self) -> None:
        """End the engine as a fault would; its containers go on."""
        self.wear()
        self.engine.kill()

    def containers(self) -> list[dict[str, str]]:
        """Docker's own rows, also of those that ended."""
        done = self.run(["docker", "ps", "--all", "--no-trunc", "--format", "{{json .}}"])
        return [json.loads(line) for line in done.stdout.splitlines()]

    # For its lab

    @property
    def healthy(self) -> bool:
        return not self._worn and self.on and self.answers()

    def reinstall(self, hosts: str) -> None:
        """As new: an empty disk, every switch back."""
        self.power_off()
        self.nvml = Nvml(self)
        self.disk.install(self.name, hosts, SSHD_CONFIG, self.key, self._folder / "host_key", self.known_hosts)
        self.disk.hide(str(REPO))  # the harness has to bring its code
        for folder in (HOME, CACHE):
            self.disk.empty(str(folder))
        self.boot()
        self._worn = False


@final
class Lab:
    """A network and its hosts. Use it in a with, or call down."""

    def __init__(self) -> None:
        self.place, lock = claim()
        self._reaper = start_reaper(self.place, lock)
        os.close(lock)
        self.folder = self.place.folder
        self.address = self.place.address(0)
        self.key = self.folder / "id_ed25519"
        self.known_hosts = self.folder / "known_hosts"
        self.shared = self.folder / "shared"
        self._hosts: list[LabHost] = []
        try:
            self._build()
        except BaseException:
            self.down()
            raise

    def _build(self) -> None:
        self.shared.mkdir(mode=0o755)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700", self.place.name, str(self.place.disks)], check=True)
        keygen(self.key)
        self.known_hosts.touch()
        name = self.place.name
        ip(f"link add {name} type bridge", f"addr add {self.address}/{PREFIX} dev {name}", f"link set {name} up")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def down(self) -> None:
        if self._reaper.poll() is None:
            self._reaper.communicate()
        for host in self._hosts:
            host.power_off()

    def hosts(self, count: int, *, fresh: bool = False) -> list[LabHost]:
        """That many healthy hosts. Those that a test wore out are installed anew; with fresh, all of them."""
        while len(self._hosts) < min(count, MAX_HOSTS):
            self._add()
        hosts = self._hosts[:count]
        worn = [host for host in hosts if fresh or not host.healthy]
        if worn:
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda host: host.reinstall(self._names()), worn))
        return hosts

    def _add(self) -> None:
        host = LabHost(self.place, len(self._hosts) + 1)
        key = self.folder / host.name / "host_key"
        key.parent.mkdir()
        keygen(key)
        public = " ".join(Path(f"{key}.pub").read_text().split()[:2])
        with self.known_hosts.open("a") as file:
            file.write(f"{host.address},{host.name} {public}\n")
        self._hosts.append(host)

    def _names(self) -> str:
        """Every host that can ever be, so that a later one needs no change on the earlier ones."""
        lines = ["127.0.0.1 localhost", "::1 localhost", f"{self.address} controller"]
        lines += [f"{self.place.address(index)} h{index}" for index in range(1, MAX_HOSTS + 1)]
        return "\n".join(lines) + "\n"

    def image(self, host: LabHost, python_folder: Path | str) -> str:
        """The base image with a folder first on its PATH, built on a host; to be run with container_options."""
        text = f"FROM {BASE}\nENV PATH={python_folder}:/usr/local/bin:/usr/bin:/bin\n"
        argv = ["docker", "build", "--network=host", "--tag", WITH_PYTHON, "-"]
        host.run(argv, input=text, env={"DOCKER_BUILDKIT": "0"})  # the other builder is a plugin
        return WITH_PYTHON

    def container_options(self, python: Path | str) -> list[str]:
        """What to give `docker run` so that this Python, say a framework's, is in the container."""
        return container_options(Path(python))

    def ssh_settings(self, hosts: Iterable[LabHost] | None = None) -> Cluster:
        """How to reach these hosts, by default all, as a settings file wants it: h1=10.77.0.2 names them too."""
        named = (f"{host.name}={host.address}" for host in (self._hosts if hosts is None else hosts))
        return Cluster(tuple(named), USER, LabHost.port, str(self.key), str(self.known_hosts))


def keygen(file: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(file)], check=True)


def _elsewhere(folders: Iterable[Path]) -> list[Path]:
    """Those that the overlay of / does not show: another file system is mounted there, or the host has its own."""
    root = os.stat("/").st_dev  # noqa: PTH116
    own = (Path("/tmp"), Path("/run"), Path("/dev"), HOME, CACHE)
    return [
        folder
        for folder in folders
        if folder.is_dir() and (folder.stat().st_dev != root or any(folder.is_relative_to(one) for one in own))
    ]
