"""A docker engine for a host, as its own machine would have."""

from __future__ import annotations

import contextlib
import io
import socket
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.needs import capable, path_of

if TYPE_CHECKING:
    from tests.lab.lab import LabHost

BASE = "flagperf-lab:base"
WITH_PYTHON = "flagperf-lab:python"
PORT = 2375
CAP_SYS_RESOURCE = 24
RUNTIME = "/usr/local/sbin/lab-runc"
SHELL = """\
#!/bin/sh
for word; do
    case $before in --bundle) bundle=$word ;; esac
    before=$word
done
case " $* " in
*" create "* | *" run "*)
    sed -i 's/"CAP_SYS_RESOURCE",//g; s/,"rlimits":\\[[^]]*\\]//' "${bundle:-.}/config.json" ;;
esac
exec """
"""Runs runc, leaving out what this machine may not give: a capability, and limits above the machine's own."""


class Engine:
    """The dockerd of one host."""

    def __init__(self, host: LabHost) -> None:
        self.host = host
        self.on_network = False

    def start(self) -> None:
        """Up and with the base image; nothing to do when it is."""
        if self.running:
            return
        argv = [path_of("dockerd"), "--storage-driver=overlay2", "--iptables=false", "--ip6tables=false"]
        argv += ["--bridge=none", "--ip-forward=false", "--pidfile=/run/docker.pid"]
        argv += ["--host=unix:///run/docker.sock", "--insecure-registry=10.77.0.0/16"]
        argv += [f"--host=tcp://{self.host.address}:{PORT}", "--tls=false"] if self.on_network else []
        if not capable(CAP_SYS_RESOURCE, "CapBnd"):
            self._install_runtime()
            argv += [f"--add-runtime=lab={RUNTIME}", "--default-runtime=lab"]
        # As on a machine with docker; there is still no way out of the lab. Without it docker warns in each command.
        self.host.run(["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])
        self.host.start(argv, "/var/log/dockerd.log")
        self._wait(True)
        if self.host.run(["docker", "image", "inspect", BASE], check=False).returncode:
            self.host.run(["docker", "import", "-", BASE], input=base_image())

    def kill(self) -> None:
        if pids := self._processes():
            self.host.run(["kill", "-KILL", *pids], check=False)
        self._wait(False)

    @property
    def running(self) -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as line:
            line.settimeout(2)
            line.connect(str(self.host.root / "run/docker.sock"))
            line.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b"200" in line.recv(64)
        return False

    def _processes(self) -> list[str]:
        return [str(one.pid) for one in self.host.processes() if one.cmdline.split(" ")[0].endswith("dockerd")]

    def _wait(self, running: bool) -> None:
        deadline = time.monotonic() + 30  # ten of them are what a container that ignores its end may take
        while not self.running if running else self._processes():
            if time.monotonic() > deadline:
                log = (self.host.root / "var/log/dockerd.log").read_text(errors="replace")
                raise TimeoutError(f"dockerd on {self.host.name}: {log[-2000:]}")
            time.sleep(0.02)

    def _install_runtime(self) -> None:
        """For a machine that lacks a capability: without help every container that asks for all of them fails."""
        file = self.host.root / RUNTIME.lstrip("/")
        file.write_text(f'{SHELL}{path_of("runc")} "$@"\n')
        file.chmod(0o755)


def container_options(python: Path) -> list[str]:
    """Options of `docker run` that let a container of the base image use a Python of the machine."""
    base = python.resolve().parents[1]
    folders = [Path(one) for one in ("/usr", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache")]
    folders += [python.parent.parent, base]
    shown = [folder for folder in folders if folder.exists()]
    return [word for folder in dict.fromkeys(shown) for word in ("-v", f"{folder}:{folder}:ro")]


def base_image() -> bytes:
    """The files of the smallest system that has a shell."""
    busybox = Path(path_of("busybox")).read_bytes()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:

        def add(
            name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, mode: int = 0o755, to: str = ""
        ) -> None:
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.size, info.linkname = kind, mode, len(content), to
            tar.addfile(info, io.BytesIO(content))

        for folder in ("bin", "dev", "etc", "lib", "lib64", "proc", "root", "run", "sys", "usr", "usr/bin", "var"):
            add(folder, kind=tarfile.DIRTYPE)
        add("tmp", kind=tarfile.DIRTYPE, mode=0o1777)
        add("bin/busybox", busybox)
        for applet in APPLETS.split():
            add(f"bin/{applet}", kind=tarfile.SYMTYPE, to="busybox")
        add("usr/bin/env", kind=tarfile.SYMTYPE, to="/bin/busybox")
        add("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n", mode=0o644)
        add("etc/group", b"root:x:0:\n", mode=0o644)
        add("etc/nsswitch.conf", b"hosts: files\n", mode=0o644)
    return stream.getvalue()


APPLETS = """
sh ash cat cp mv rm ls mkdir rmdir ln echo printf true false sleep kill ps id pwd head tail grep sed awk cut
sort uniq wc tr dd df du mount umount touch chmod chown date hostname test expr seq find xargs tar gzip free
ip ping nc wget tee stat readlink basename dirname yes uname which dmesg nproc timeout tty
"""
