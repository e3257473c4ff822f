"""Namespaces of a round's ranks: they see only themselves, and what they may not write is mounted read-only.

So ranks change no times, modes or flags of files that they read, and reach no other process. Those of a user who is not
root are in a user namespace, too, which maps only this user. Ranks of a container have the container's.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Callable, Mapping, Sequence

_PARENT, _NEWNS, _NEWUSER, _NEWPID = 0x8000, 0x20000, 0x10000000, 0x20000000
_CALLS = {"open_tree": 428, "move_mount": 429, "clone3": 435, "mount_setattr": 442}  # on all architectures; Linux 5.12
_AT_FDCWD, _RECURSIVE, _COPY, _OF_HANDLE, _RDONLY, _SLAVE = -100, 0x8000, 1, 4, 1, 1 << 19
_PROC_FLAGS = 2 | 4 | 8  # without set-user-ID, devices and programs
_KERNEL_SETTINGS = ("bus", "fs", "irq", "sys", "sysrq-trigger")
"""What container engines, too, make read-only in /proc."""
_SETTINGS = Path("/proc/sys")
_USER_NAMESPACES = {"user.max_user_namespaces": 15000, "kernel.unprivileged_userns_clone": 1}  # 0 refuses them
_READY = b"ready"
_libc = ctypes.PyDLL(None, use_errno=True)  # a call keeps Python's lock, so that a fork has it


def are_missing() -> bool:
    """Return True if a process has the host's namespaces: it is not in a container, whose engine protects /proc."""
    return not all(_is_read_only(f"/proc/{name}") for name in _KERNEL_SETTINGS)


def refusing_setting() -> str:
    """Return the kernel's setting that refuses user namespaces, and how to change it; empty without one."""
    for name, allowing in _USER_NAMESPACES.items():
        with suppress(OSError):
            if (_SETTINGS / name.replace(".", "/")).read_text().strip() == "0":
                return f"{name} is 0; as root: sysctl {name}={allowing}"
    return ""


class Namespaces:
    """Namespaces of their first process, a fork of this one. They end with it, and it ends with this process.

    This process must have one thread when it makes them. It stays outside, and knows all processes by the host's pids.
    """

    def __init__(self, writable: Sequence[str]) -> None:
        """Make them; raise OSError with the reason if the kernel refuses."""
        user, group = os.geteuid(), os.getegid()
        maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"} if user else {}
        self._socket, others = socket.socketpair()
        with others:
            try:
                pid = _clone(_NEWNS | _NEWPID | (_NEWUSER if user else 0), signal.SIGCHLD)
            except OSError as error:
                self._socket.close()
                raise OSError("; ".join(filter(None, [str(error), refusing_setting() if user else ""]))) from None
            if pid == 0:
                _be_first(others, maps, writable)
        if (answer := self._socket.recv(1 << 12)) != _READY:
            os.waitpid(pid, 0)
            raise OSError(answer.decode() or "their first process ended")
        names = [*(["ns/user"] if user else []), "ns/mnt", "ns/pid", "root"]
        *self._handles, self._root = (os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names)
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.proc = f"/proc/{pid}/root/proc"
        """The /proc of the ranks, as this process sees it."""

    def enter(self, folder: str) -> None:
        """Let a child with one thread go on in them, in the folder, as another child of this process."""
        for handle in self._handles:
            _check("setns", _libc.setns(handle, 0))
        os.fchdir(self._root)
        os.chroot(".")
        if pid := _clone(_PARENT):
            os.write(self._writer, pid.to_bytes(4, sys.byteorder))
            os._exit(0)
        os.chdir(folder)

    def follow(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Start a child that enters; return it with the pid by which it goes on."""
        try:
            child = start()
        except (OSError, subprocess.SubprocessError):
            with suppress(BlockingIOError):  # it had not entered
                os.waitpid(self._entered(), 0)
            raise
        os.waitpid(child.pid, 0)
        child.pid = self._entered()
        return child

    def _entered(self) -> int:
        return int.from_bytes(os.read(self._reader, 4), sys.byteorder)


def _be_first(others: socket.socket, maps: Mapping[str, str], writable: Sequence[str]) -> None:
    """Mount, then forget ended orphans until the other process ends."""
    try:
        detach(keep={others.fileno()})
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        for name, text in maps.items():
            Path("/proc/self", name).write_text(text)
        _mount_all(writable)
        others.send(_READY)
        others.recv(1)
    except Exception as error:  # the other process raises it
        others.send(str(error).encode())
    finally:
        os._exit(0)


def detach(keep: set[int]) -> None:
    """Let a fork outlive this process, with these files only: an open pipe would hide its death from the controller."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers, not paths
        if int(name) > 2 and int(name) not in keep:
            with suppress(OSError):
                os.close(int(name))


def _mount_all(writable: Sequence[str]) -> None:
    _set("/", propagation=_SLAVE)
    own = {path: _copy(path) for path in map(os.path.realpath, writable) if not _is_read_only(path)}
    _set("/", _RDONLY)
    for path, copy in own.items():
        _put(copy, path)
    _check("mount of proc", _libc.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(_PROC_FLAGS), None))
    for path in (f"/proc/{name}" for name in _KERNEL_SETTINGS):
        if not _is_read_only(path):
            _put(_copy(path), path)
            _set(path, _RDONLY)


def _is_read_only(path: str) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return True


def _copy(path: str) -> int:
    """Return a copy of what is mounted at the path and below; what the host has mounted read-only there is so, too."""
    return _call("open_tree", _AT_FDCWD, os.fsencode(path), _COPY | _RECURSIVE)


def _put(copy: int, path: str) -> None:
    _call("move_mount", copy, b"", _AT_FDCWD, os.fsencode(path), _OF_HANDLE)


def _set(path: str, attributes: int = 0, propagation: int = 0) -> None:
    words = struct.pack("=4Q", attributes, 0, propagation, 0)
    _call("mount_setattr", _AT_FDCWD, os.fsencode(path), _RECURSIVE, words, len(words))


def _clone(flags: int, signal_at_end: int = 0) -> int:
    """Fork, with flags for the child."""
    words = struct.pack("=8Q", flags, 0, 0, 0, signal_at_end, 0, 0, 0)
    return _call("clone3", words, len(words))


def _call(name: str, *arguments: int | bytes) -> int:
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in (_CALLS[name], *arguments)]
    return _check(name, _libc.syscall(*words))


def _check(name: str, result: int) -> int:
    if result < 0:
        raise OSError(f"the kernel refuses {name}: {os.strerror(ctypes.get_errno())}")
    return result
