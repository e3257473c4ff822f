"""Confine a vendor's code: what it may write and read, with Linux's Landlock and seccomp, which need no privilege.

A confined thread and all that it starts read and execute everything except ``hidden`` folders, and change files only
below ``writable`` folders. They store nothing in attributes of files, message queues or keyrings, which Landlock does
not cover. ``sockets=False`` also takes all sockets that lead out of the process, except those to the kernel.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import queue
import socket
import stat
import struct
import threading
from contextlib import suppress
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Sequence

from flagperf_driver.node.namespaces import Namespaces, are_missing

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on all architectures
_VERSION, _PATH_BENEATH = 1, 1
_LEAST_VERSION = 2  # Linux 5.19: version 1 refuses to move a file to another folder, which compilers' caches do
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK, _MAKE_SYM, _TRUNCATE = 1 << 6, 1 << 11, 1 << 12, 1 << 14
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_CHANGE = _WRITE_FILE | ((1 << 14) - 1) & ~((1 << 4) - 1)  # also remove, make and move all kinds of files
_OF_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_SIGNALS_WITHIN = 1 << 1  # since version 6: signals reach only processes that are confined together with the sender

_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ANOTHER_ABI = 0x40000000  # numbers of x86's x32
_MOUNTS = (428, 430, 432, 433, 442, 467)  # open_tree, fsopen, fsmount, fspick, mount_setattr, open_tree_attr
"""Landlock refuses the other calls that change mounts. The numbers are the same on all architectures."""


class _Architecture(NamedTuple):
    """The audit number of an architecture, and its numbers of the calls that are refused."""

    audit: int
    attributes: Sequence[int]  # setxattr, lsetxattr, fsetxattr, setxattrat
    stores: Sequence[int]  # mq_open, add_key, request_key, keyctl, io_uring_setup
    socket: int


_ARCHITECTURES = {
    "x86_64": _Architecture(0xC000003E, (188, 189, 190, 463), (240, 248, 249, 250, 425), 41),
    "aarch64": _Architecture(0xC00000B7, (5, 6, 7, 463), (180, 217, 218, 219, 425), 198),
}
_libc = ctypes.CDLL(None, use_errno=True)


class NotConfined(Exception):
    """The kernel does not offer what a confinement needs; the text is the reason."""


class Permissions(NamedTuple):
    """What a confined process may do."""

    writable: Sequence[str]  # files and folders; those that do not exist are ignored
    without_links: Sequence[str] = ()  # writable folders in which no symbolic link is made
    hidden: Sequence[str] = ()
    devices: Sequence[str] = ("/dev",)  # files and folders whose files may be written
    sockets: bool = True
    processes: str = ""  # the /proc in which the files of processes may be written: CUDA names its threads there


def confine(limits: Permissions) -> None:
    """Confine the calling thread for ever; raise NotConfined if the kernel cannot."""
    architecture = _ARCHITECTURES.get(platform.machine())
    if architecture is None:
        raise NotConfined(f"no confinement is known for {platform.machine()}")
    version = _call(_CREATE_RULESET, None, 0, _VERSION)
    if version < _LEAST_VERSION:
        reason = f"has version {version} of it" if version > 0 else os.strerror(ctypes.get_errno())
        raise NotConfined(f"Landlock of Linux 5.19 or later is needed; this kernel ({platform.release()}): {reason}")
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise NotConfined(f"no_new_privs: {os.strerror(ctypes.get_errno())}")
    _restrict_files(limits, version)
    _refuse_calls(architecture, limits.sockets)


class ConfinedThread:
    """A thread that confines itself and then makes calls for this one.

    What it starts is confined, but not this thread. All of it is confined together, so that the ranks of a host can
    copy memory from each other. The thread lives as long as this process, because the kernel ends ranks with it.
    """

    def __init__(self, limits: Permissions) -> None:
        self._calls: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self.problem: str | None = None
        self.namespaces: Namespaces | None = None
        self.shared: str | None = None
        """Why all that this thread starts shares the host's namespaces."""
        try:
            if are_missing():
                self.namespaces = Namespaces([*limits.writable, *limits.without_links, *limits.devices])
                limits = limits._replace(processes=self.namespaces.proc)
        except OSError as error:
            self.shared = str(error)
            self.problem = None if os.geteuid() else f"root's ranks get no namespaces: {error}"
        threading.Thread(target=self._serve, daemon=True).start()
        try:
            self.call(lambda: confine(limits))
        except (NotConfined, OSError) as error:
            self.problem = str(error)

    def call(self, function: Callable[[], Any]) -> Any:
        """Return the function's value; this thread waits meanwhile, so a fork there copies no lock in use."""
        self._calls.put(function)
        value, error = self._results.get()
        if error is not None:
            raise error
        return value

    def _serve(self) -> None:
        while True:
            function = self._calls.get()
            try:
                self._results.put((function(), None))
            except BaseException as error:  # raised in the calling thread
                self._results.put((None, error))


# -- files -------------------------------------------------------------------------------------------------------


def _restrict_files(limits: Permissions, version: int) -> None:
    change = _CHANGE | (_TRUNCATE if version >= 3 else 0)
    handled = change | (_READ if limits.hidden else 0)
    attributes = struct.pack("=QQQ", handled, 0, _SIGNALS_WITHIN if version >= 6 else 0)
    ruleset = _call(_CREATE_RULESET, attributes, len(attributes) if version >= 6 else 8, 0)
    if ruleset < 0:
        raise NotConfined(f"Landlock: {os.strerror(ctypes.get_errno())}")
    try:
        if limits.hidden:
            for path in _visible("/", {os.path.realpath(path) for path in limits.hidden}):
                _add_rule(ruleset, path, _READ)
        own = handled & ~(_MAKE_CHAR | _MAKE_BLOCK)
        for path in limits.writable:
            _add_rule(ruleset, os.path.realpath(path), own)
        for path in limits.without_links:
            _add_rule(ruleset, os.path.realpath(path), own & ~_MAKE_SYM)
        for path in limits.devices:
            _add_rule(ruleset, path, handled & (_OF_FILE | _MAKE_CHAR))  # drivers make devices when they are first used
        if limits.processes:
            # No rule can name the folders of processes that will be started; only their common parent.
            _add_rule(ruleset, limits.processes, handled & (_READ | _WRITE_FILE | _TRUNCATE))
        if _call(_RESTRICT_SELF, ruleset, 0):
            raise NotConfined(f"Landlock: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(ruleset)


def _visible(folder: str, hidden: Iterable[str]) -> Iterator[str]:
    """Yield files and folders that together contain everything below ``folder`` but the hidden ones."""
    inside = {path for path in hidden if path.startswith(folder.rstrip("/") + "/")}
    names = {path[len(folder.rstrip("/")) + 1 :].partition("/")[0] for path in inside}
    with suppress(OSError), os.scandir(folder) as entries:  # if it cannot be listed, its other entries stay closed
        for entry in entries:
            # The kernel looks at the folders that really contain a file, so a link needs no rule.
            if entry.name not in names and not entry.is_symlink():
                yield entry.path
    for name in names:
        path = os.path.join(folder, name)  # noqa: PTH118 - called for many entries
        if path not in inside:
            yield from _visible(path, inside)


def _add_rule(ruleset: int, path: str, access: int) -> None:
    """Allow the access to a file, or below a folder, if it exists."""
    try:
        handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            access &= _OF_FILE
        rule = struct.pack("=Qi", access, handle)
        if _call(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0):
            raise NotConfined(f"Landlock: {path}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(handle)


def _call(number: int, *arguments: Any) -> int:
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return int(_libc.syscall(ctypes.c_long(number), *words))


# -- system calls ------------------------------------------------------------------------------------------------


def _refuse_calls(architecture: _Architecture, sockets: bool) -> None:
    refused = [(number, errno.EOPNOTSUPP) for number in architecture.attributes]
    refused += [(number, errno.ENOSYS) for number in (*architecture.stores, *_MOUNTS)]
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, architecture.audit),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _ANOTHER_ABI),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    for number, error in refused:
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | error)]
    if not sockets:
        lines += [
            (_EQUAL, 0, 3, architecture.socket),
            (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
            (_EQUAL, 1, 0, socket.AF_NETLINK),
            (_RETURN, 0, 0, _ERRNO | errno.EACCES),
        ]
    lines.append((_RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(lines), ctypes.addressof(code)))
    if _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0):
        raise NotConfined(f"seccomp: {os.strerror(ctypes.get_errno())}")
