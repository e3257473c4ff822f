"""Let a process of this machine look like Windows to our modules: ``python other_system.py PROGRAM ARGUMENTS``.

Our modules, and only they, cannot import the modules that Windows lacks, find the functions and constants that it
lacks, read /proc and /sys, open folders, or create files whose names Windows refuses. What macOS lacks, Windows lacks,
too. Paths stay those of this machine.

The arguments are those of pytest, or commands of flagperf that are separated by ``--``.
"""

from __future__ import annotations

import builtins
import os
import sys
import types
from collections.abc import Callable
from itertools import groupby
from pathlib import Path, PureWindowsPath
from typing import Any, cast

OURS = ("pytest_flagperf", "flagperf_driver")
LACKING: dict[str, str] = {
    "os": "memfd_create sched_getaffinity sched_setaffinity pidfd_open posix_fadvise fdatasync eventfd setns unshare"
    " splice copy_file_range getrandom listxattr getxattr O_PATH O_TMPFILE O_DIRECT getresuid getresgid"
    " getuid geteuid getgid getegid getgroups getpgid getpgrp setpgid getsid setsid setuid"
    " killpg fork forkpty openpty ctermid chown fchown lchown chroot fchmod lchmod mkfifo mknod nice getpriority"
    " pread pwrite preadv readv writev sendfile statvfs fstatvfs sync sysconf uname wait wait3 wait4 waitid"
    " posix_spawn register_at_fork getloadavg confstr pathconf sched_yield lockf"
    " WIFSIGNALED WTERMSIG WEXITSTATUS WIFEXITED WNOHANG O_NOFOLLOW O_DIRECTORY O_CLOEXEC O_NONBLOCK O_SYNC",
    "time": "CLOCK_BOOTTIME CLOCK_MONOTONIC CLOCK_MONOTONIC_RAW CLOCK_REALTIME clock_gettime clock_gettime_ns",
    "select": "epoll poll POLLIN POLLOUT POLLHUP POLLERR",
    "signal": "SIGKILL SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGALRM SIGCHLD SIGPIPE SIGCONT SIGSTOP SIGTSTP alarm setitimer"
    " pthread_sigmask pthread_kill sigwait sigtimedwait sigwaitinfo SIG_BLOCK SIG_UNBLOCK SIG_SETMASK siginterrupt",
    "socket": "AF_NETLINK SO_PEERCRED AF_PACKET AF_UNIX CMSG_LEN CMSG_SPACE SCM_RIGHTS",
}
MODULES_NOT_ON_WINDOWS = {
    "fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "syslog", "posix", "curses", "readline",
}  # fmt: skip
IN_NAMES = set('<>:"|?*')
"""The characters that no name of a file may have on Windows."""


class Lacking(types.ModuleType):
    """A module without some of its names."""

    def __init__(self, module: types.ModuleType, lacks: str, instead: dict[str, Any]) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(instead)
        self._module, self._lacks = module, frozenset(lacks.split())

    def __getattr__(self, name: str) -> Any:
        if name in self._lacks:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._module, name)


def become_windows() -> None:
    """Let our modules that are imported from now on find themselves on Windows."""
    instead: dict[str, dict[str, Any]] = {"os": {"open": _without_folders(os.open)}}
    proxies: dict[str, types.ModuleType] = {
        name: Lacking(__import__(name), lacks, instead.get(name, {})) for name, lacks in LACKING.items()
    }
    proxies["sys"] = Lacking(sys, "", {"platform": "win32"})
    import_module = builtins.__import__

    def guarded(name: str, importer: Any = None, *arguments: Any, **named: Any) -> Any:
        package = str((importer or {}).get("__name__", "")).partition(".")[0]
        if package in OURS and name.partition(".")[0] in MODULES_NOT_ON_WINDOWS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        proxy = proxies.get(name) if package in OURS else None
        return proxy or import_module(name, importer, *arguments, **named)

    builtins.__import__ = cast("Any", guarded)
    sys.addaudithook(_hear)


def _without_folders(open_file: Callable[..., int]) -> Callable[..., int]:
    def opened(path: Any, flags: int, *arguments: Any, **named: Any) -> int:
        if Path(path).is_dir():
            raise PermissionError(13, "Permission denied", str(path))
        return open_file(path, flags, *arguments, **named)

    return opened


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse to read what Linux alone has, and to create what Windows refuses."""
    if event not in ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename"):
        return
    for path in arguments[:2] if event == "os.rename" else arguments[:1]:
        if not isinstance(path, (str, os.PathLike)):
            continue
        text = os.fspath(path)
        if text.startswith(("/proc/", "/sys/")) and _called_by_us():
            raise FileNotFoundError(2, "No such file or directory", text)
        created = event in ("os.mkdir", "os.rename") or (event == "open" and _writes(arguments))
        if created and not is_name(Path(text).name):
            raise OSError(22, "Invalid argument: a name that Windows refuses", text)


def _writes(arguments: tuple[Any, ...]) -> bool:
    return isinstance(arguments[2], int) and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def is_name(name: str) -> bool:
    """Return True if Windows accepts the name of a file."""
    return not IN_NAMES & set(name) and not name.endswith((".", " ")) and not PureWindowsPath(name).is_reserved()


def _called_by_us() -> bool:
    frame = sys._getframe(2)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in OURS:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


if __name__ == "__main__":
    # What our modules share with this process is loaded before, with all that the system has.
    import pytest

    become_windows()
    program, *words = sys.argv[1:]
    if program == "pytest":
        sys.exit(pytest.main(words))
    else:
        from pytest_flagperf.commands import main

        commands = [list(group) for is_end, group in groupby(words, "--".__eq__) if not is_end]
        sys.exit(max(map(main, commands)))
