"""Namespaces of a round's ranks: they see only themselves, and what they may not write is mounted read-only.

So ranks of root change no times, modes or flags of files that they read, and reach no other process. Only root may make
them in a program with threads; ranks of a container have the container's.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Iterator, Sequence

from flagperf_driver.node.deployed_code import CODE_ROOT, module_argv

_CLONE_NEWNS, _CLONE_NEWPID, _MS_BIND, _MS_REC, _MS_SLAVE = 0x20000, 0x20000000, 1 << 12, 1 << 14, 1 << 19
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _RDONLY = 442, -100, 0x8000, 1  # since Linux 5.12
_PROC_FLAGS = 2 | 4 | 8  # without set-user-ID, devices and programs
_KERNEL_SETTINGS = ("bus", "fs", "irq", "sys", "sysrq-trigger")
"""What container engines, too, make read-only in /proc."""
_libc = ctypes.CDLL(None, use_errno=True)


def are_missing() -> bool:
    """Return True if a process has the host's namespaces: it is not in a container, whose engine protects /proc."""
    return not all(_is_read_only(f"/proc/{name}") for name in _KERNEL_SETTINGS)


def enter(writable: Sequence[str]) -> subprocess.Popen[bytes] | None:
    """Let all that this thread starts from now on be in namespaces; return their first process, which ends them.

    Return None in a container and for other users; raise OSError with the reason if the kernel refuses them.
    """
    if os.geteuid() or not are_missing():
        return None
    if _libc.unshare(_CLONE_NEWNS | _CLONE_NEWPID):
        raise OSError(f"root's ranks get no namespaces: {os.strerror(ctypes.get_errno())}")
    argv = [*module_argv(sys.executable, str(CODE_ROOT), __name__), json.dumps(writable)]
    # Its input ends with this process; a signal of this process's confined thread would not reach it.
    first = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert first.stdout is not None
    if (answer := first.stdout.readline().decode().strip()) != "ready":
        first.kill()
        first.wait()
        raise OSError(f"root's ranks get no namespaces: {answer or 'their first process ended'}")
    return first


def _serve() -> None:
    """Be the first process: mount, then forget ended orphans until the parent ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        _mount_all(json.loads(sys.argv[1]))
    except OSError as error:
        print(error, flush=True)
        return
    print("ready", flush=True)
    sys.stdin.read()


def _mount_all(writable: Sequence[str]) -> None:
    _mount(None, "/", _MS_REC | _MS_SLAVE)
    own = [path for path in map(os.path.realpath, writable) if not _is_read_only(path)]
    for path in own:
        _mount(os.fsencode(path), path, _MS_BIND | _MS_REC)
    read_only = list(_read_only_below(own))
    _set_read_only("/")
    for path in own:
        _set_read_only(path, clear=True)
    for path in read_only:
        _set_read_only(path)
    _mount(b"proc", "/proc", _PROC_FLAGS, b"proc")
    for path in (f"/proc/{name}" for name in _KERNEL_SETTINGS):
        if not _is_read_only(path):
            _mount(os.fsencode(path), path, _MS_BIND | _MS_REC)
            _set_read_only(path)


def _is_read_only(path: str) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return True


def _read_only_below(folders: Sequence[str]) -> Iterator[str]:
    """Yield what the host has mounted read-only within folders that may be written."""
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        point, flags = line.split()[4:6]
        path = os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), point))
        if b"ro" in flags.split(b",") and any(path.startswith(f"{folder}/") for folder in folders):
            yield path


def _set_read_only(path: str, clear: bool = False) -> None:
    attributes = struct.pack("=QQQQ", *((0, _RDONLY) if clear else (_RDONLY, 0)), 0, 0)
    words = [_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), _AT_RECURSIVE, attributes, len(attributes)]
    if _libc.syscall(*(ctypes.c_long(word) if isinstance(word, int) else word for word in words)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)


def _mount(source: bytes | None, target: str, flags: int, kind: bytes | None = None) -> None:
    if _libc.mount(source, os.fsencode(target), kind, ctypes.c_ulong(flags), None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


if __name__ == "__main__":
    _serve()
