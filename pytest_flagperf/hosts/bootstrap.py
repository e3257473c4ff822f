"""Start of the deployed code on a host: sent as text and run by the host's own Python (>= 3.8).

This file imports nothing of the project, which is not on the host yet, and few other modules, since each import
delays every start.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ANOTHER = "set FLAGPERF_CACHE to a folder of your own"


def cache_root() -> Path:
    """Return $FLAGPERF_CACHE, else pytest-flagperf in $XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("FLAGPERF_CACHE")
    if own:
        return Path(own).absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache").absolute() / "pytest-flagperf"


def own_cache() -> Path:
    """Create the cache; refuse one that another user could change, since its code and environments are run here."""
    root = cache_root()
    root.parent.mkdir(parents=True, exist_ok=True)
    try:
        root.mkdir(mode=0o755)
    except FileExistsError:
        status = root.stat()
        if hasattr(os, "getuid") and status.st_uid not in (0, os.getuid()):
            sys.exit(f"the cache {root} belongs to user {status.st_uid}, not to {os.getuid()}: {_ANOTHER}")
        if hasattr(os, "getuid") and status.st_mode & 0o022:
            sys.exit(f"other users can write to the cache {root}: run chmod go-w {root}, or {_ANOTHER}")
    return root


def boot(digest: str, module: str, *words: str) -> None:
    """Run a module of the code with this digest in this process."""
    import runpy

    root = stage(digest)
    sys.path.insert(0, root)
    sys.argv[:] = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def stage(digest: str) -> str:
    """Send the folder of the code with this digest; request the code first if it is missing."""
    root = own_cache() / "code" / digest
    if not root.is_dir():
        _send(type="need")
        _unpack(root, json.loads(_line())["archive"])
    _send(type="ready", path=str(root))
    return str(root)


def attach(log_dir: str) -> None:
    """Connect stdin and stdout to the socket of the agent that logs to ``log_dir``."""
    import select
    import socket

    agent = socket.socket(socket.AF_UNIX)
    try:
        os.chdir(log_dir)  # a socket's path is limited to about 100 bytes
        agent.connect("agent.sock")
    except OSError as error:
        sys.exit(f"no agent listens in {log_dir} ({error.strerror}); {_agent_record(log_dir)}")
    targets = {0: agent.fileno(), agent.fileno(): 1}
    while True:
        for source in select.select(list(targets), [], [])[0]:
            piece = os.read(source, 1 << 16)
            if not piece:
                return
            _write(targets[source], piece)


def _agent_record(log_dir: str) -> str:
    try:
        return "the last agent's message: " + Path(log_dir, "agent.json").read_text().strip()
    except OSError:
        return "and no agent left a message"


def _unpack(root: Path, text: str) -> None:
    """Unpack the code completely or not at all; of two processes that do this at once, one succeeds."""
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
            # Pythons that support filters warn if no filter is set.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(str(temporary))  # noqa: S202 - the harness made the archive
        temporary.chmod(0o755)  # readable by the user of a container
        try:
            temporary.rename(root)
        except OSError:
            if not root.is_dir():
                raise
    finally:
        shutil.rmtree(str(temporary), ignore_errors=True)


def _line() -> bytes:
    """Read one line of stdin and nothing after it."""
    pieces: list[bytes] = []
    while not pieces or not pieces[-1].endswith(b"\n"):
        pieces.append(os.read(0, 1 << 20))  # the harness sends nothing else before the answer
        if not pieces[-1]:
            sys.exit("the harness disconnected before it sent its code")
    return b"".join(pieces)


def _write(handle: int, piece: bytes) -> None:
    while piece:
        piece = piece[os.write(handle, piece) :]


def _send(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    tasks: "dict[str, Callable[..., Any]]" = {"boot": boot, "stage": stage, "attach": attach}
    tasks[sys.argv[1]](*sys.argv[2:])
