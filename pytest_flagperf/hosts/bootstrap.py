"""What the harness asks of a bare host, sent there as text and run by its own Python (>= 3.8).

Imports nothing of the project: at this point nothing of it is on the host. Every import counts, too: this runs
before anything else does.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def cache_root() -> Path:
    """$FLAGPERF_CACHE, else pytest-flagperf in $XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("FLAGPERF_CACHE")
    if own:
        return Path(own).absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache").absolute() / "pytest-flagperf"


def boot(digest: str, module: str, *words: str) -> None:
    """Become a module of the code with this digest."""
    import runpy

    root = stage(digest)
    sys.path.insert(0, root)
    sys.argv[:] = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def stage(digest: str) -> str:
    """Say where the code with this digest is; without it ask for it first."""
    root = cache_root() / "code" / digest
    if not root.is_dir():
        _say(type="need")
        _unpack(root, json.loads(_line())["archive"])
    _say(type="ready", path=str(root))
    return str(root)


def attach(log_dir: str) -> None:
    """Be the connection to the agent that logs there: its socket's two ends are our stdin and stdout."""
    import select
    import socket

    agent = socket.socket(socket.AF_UNIX)
    try:
        os.chdir(log_dir)  # the path of a socket may not be long, that of a folder may
        agent.connect("agent.sock")
    except OSError as error:
        sys.exit(f"no agent listens in {log_dir} ({error.strerror}); {_last_word(log_dir)}")
    ways = {0: agent.fileno(), agent.fileno(): 1}
    while True:
        for source in select.select(list(ways), [], [])[0]:
            piece = os.read(source, 1 << 16)
            if not piece:
                return
            _write(ways[source], piece)


def _last_word(log_dir: str) -> str:
    try:
        return "the last agent's message: " + Path(log_dir, "agent.json").read_text().strip()
    except OSError:
        return "and no agent left a message"


def _unpack(root: Path, text: str) -> None:
    """Whole or not at all; of two who do it at the same time, one wins."""
    import base64
    import io
    import shutil
    import tarfile
    import tempfile
    import zlib

    raw = zlib.decompress(base64.b64decode(text))
    root.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix="." + root.name[:8], dir=str(root.parent)))
    try:
        with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
            # Pythons that know filters warn where none is set.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(str(temporary))  # noqa: S202 - a tree of our own making
        temporary.chmod(0o755)  # a container's user reads it, too
        try:
            temporary.rename(root)
        except OSError:
            if not root.is_dir():
                raise
    finally:
        shutil.rmtree(str(temporary), ignore_errors=True)


def _line() -> bytes:
    """One line of stdin, and no byte of what comes after it."""
    pieces: list[bytes] = []
    while not pieces or not pieces[-1].endswith(b"\n"):
        pieces.append(os.read(0, 1 << 20))  # the harness sends nothing else until it is answered
        if not pieces[-1]:
            sys.exit("the harness disconnected before it sent its code")
    return b"".join(pieces)


def _write(handle: int, piece: bytes) -> None:
    while piece:
        piece = piece[os.write(handle, piece) :]


def _say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    tasks: "dict[str, Callable[..., Any]]" = {"boot": boot, "stage": stage, "attach": attach}
    tasks[sys.argv[1]](*sys.argv[2:])
