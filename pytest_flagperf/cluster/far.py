"""What the harness asks of a bare host, sent there as text and run by its own Python (>= 3.8).

Imports nothing of the project: at this point nothing of it is on the host.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Below the range from which Linux serves outgoing connections: none of those takes the port meanwhile.
PORTS = range(20000, 32000)


def cache_root() -> Path:
    """$FLAGPERF_CACHE, else pytest-flagperf in $XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("FLAGPERF_CACHE")
    if own:
        return Path(own).absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache").absolute() / "pytest-flagperf"


def free_port(tries: int = 100) -> int:
    """A port that nobody listens on now; who comes first to it later is told so by its own framework."""
    for port in random.sample(PORTS, tries):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port among {tries} tried in {PORTS[0]}-{PORTS[-1]}")


def facts() -> None:
    """Say what a round must know of a host before it starts anything there."""
    cpus = sorted(os.sched_getaffinity(0))
    _answer(cpus=cpus, environ=dict(os.environ), port=free_port())


def stage(digest: str) -> None:
    """Unpack the tree on stdin under its digest, once; of two who do it at the same time, one wins."""
    target = cache_root() / "code" / digest
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix="." + digest[:8], dir=str(target.parent)))
        try:
            with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as tar:
                # Pythons that know filters warn where none is set.
                tar.extraction_filter = getattr(tarfile, "data_filter", None)
                tar.extractall(str(temporary))  # noqa: S202 - a tree of our own making
            try:
                temporary.rename(target)
            except OSError:
                if not target.is_dir():
                    raise
        finally:
            shutil.rmtree(str(temporary), ignore_errors=True)
    _answer(path=str(target))


def sweep(log_dir: str) -> None:
    """End whatever still runs for the round that logs there, grandchildren and daemons too, and name it."""
    mark = b"FLAGPERF_LOG_DIR=" + os.fsencode(log_dir)
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found[process.name] = (process / "comm").read_text().strip()
                os.kill(int(process.name), signal.SIGKILL)
    _answer(swept=[f"{name} (pid {pid})" for pid, name in sorted(found.items())])


def _answer(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    tasks: "dict[str, Callable[..., None]]" = {"facts": facts, "stage": stage, "sweep": sweep}
    tasks[sys.argv[1]](*sys.argv[2:])
