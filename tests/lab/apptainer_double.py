"""A double of ``apptainer exec`` for lab hosts without Apptainer: a mount namespace whose root is the image's folder.

It takes the options that the project uses, stays the parent of the program and passes on signals, as Apptainer does.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

CLONE_NEWNS, MS_BIND, MS_REC, MS_REMOUNT, MS_RDONLY, MS_SLAVE = 0x20000, 0x1000, 0x4000, 0x20, 1, 1 << 19
libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, flags: int) -> None:
    if libc.mount(source.encode(), target.encode(), None, flags, None):
        sys.exit(f"FATAL: mount {source}->{target} error: {os.strerror(ctypes.get_errno())}")


def bind(image: str, source: str, inside: str, read_only: bool = False) -> None:
    target = image + inside
    if Path(source).is_dir():
        Path(target).mkdir(parents=True, exist_ok=True)
    else:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).touch()
    mount(source, target, MS_BIND | MS_REC)
    if read_only:
        mount(source, target, MS_BIND | MS_REMOUNT | MS_RDONLY)


def main(words: list[str]) -> None:
    if words[0] == "--version":
        print("apptainer version 0.0.0-double")
        return
    binds: list[list[str]] = []
    folder, words = "/", words[1:]
    while words[0].startswith("-"):
        name, _, value = words.pop(0).partition("=")
        if name == "--bind":
            binds.append(value.split(":"))
        elif name == "--pwd":
            folder = value
        elif name not in ("--nv", "--rocm"):
            sys.exit(f"FATAL: unknown flag: {name}")
    image = words.pop(0)
    child = os.fork()
    if not child:
        if libc.unshare(CLONE_NEWNS):
            sys.exit("FATAL: unshare failed")
        mount("none", "/", MS_REC | MS_SLAVE)
        mount(image, image, MS_BIND)
        for always in ("/proc", "/sys", "/dev", "/tmp"):
            bind(image, always, always)
        for source, inside, *rest in binds:
            bind(image, source, inside, rest == ["ro"])
        os.chroot(image)
        os.chdir(folder)
        os.environ["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        os.execvp(words[0], words)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: os.kill(child, got))
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL) if os.WTERMSIG(status) != signal.SIGKILL else None
        os.kill(os.getpid(), os.WTERMSIG(status))
    sys.exit(os.WEXITSTATUS(status))


main(sys.argv[1:])
