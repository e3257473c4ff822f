"""Install what an interpreter lacks from a folder of wheels into a folder of the cache, or reuse an equal one.

Ranks have the folder on PYTHONPATH, before the interpreter's own packages; nothing is written beside these.

It serves one request (see ``request_server``): ``{"op": "look" | "build", "python", "version": of that interpreter,
"requirements": [line, ...], "wheels": folder, "pip": whether the interpreter has pip, "timeout_s"}``; ``requirements``
must list dependencies too. The answer has the ``folder``; after a look it is empty if it is not ready.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections import deque
from pathlib import Path
from typing import Sequence

from flagperf_driver.node.environments import seal
from flagperf_driver.node.folder import cache_root
from flagperf_driver.node.long_work import one_at_a_time, run_program
from flagperf_driver.node.request_server import Answer, Request, RequestError, send, serve
from flagperf_driver.rank_process import inherited

_WORK = "these packages"
_LAST_LINES = 3


def handle(request: Request) -> Answer:
    python, lines, wheels = str(request["python"]), sorted(map(str, request["requirements"])), Path(request["wheels"])
    if not wheels.is_dir():
        raise RequestError(f"{wheels}: folder of wheels not found on this host")
    files = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in sorted(wheels.glob("*.whl"))]
    content = json.dumps([python, request["version"], lines, files])
    folder = cache_root() / "overlay" / hashlib.sha256(content.encode()).hexdigest()[:16]
    if _is_ready(folder):
        return {"folder": str(folder)}
    if request["op"] == "look":
        return {"folder": ""}
    deadline = time.monotonic() + float(request["timeout_s"])
    with one_at_a_time(folder.with_name(f"{folder.name}.lock"), deadline, f"installs {_WORK}", f"installing {_WORK}"):
        if not _is_ready(folder):
            shutil.rmtree(str(folder), ignore_errors=True)
            send("progress", line=f"building {folder} with {', '.join(lines)} from {wheels}")
            try:
                _install(request, lines, wheels, folder, deadline)
                seal.write(folder)
            except BaseException:
                shutil.rmtree(str(folder), ignore_errors=True)
                raise
    return {"folder": str(folder)}


def _is_ready(folder: Path) -> bool:
    return folder.is_dir() and not seal.changes(folder)


def _pip(python: str, wheels: Path, *, has_pip: bool) -> Sequence[str]:
    """Return how the interpreter runs pip: its own, else that of a wheel, which runs without being installed."""
    if has_pip:
        return ["-m", "pip"]
    own = sorted(wheels.glob("pip-*.whl"))
    if not own:
        raise RequestError(f"{python} has no pip, and {wheels} has no wheel of pip: add one (flagperf wheels does)")
    return [str(own[-1] / "pip")]


def _install(request: Request, lines: Sequence[str], wheels: Path, folder: Path, deadline: float) -> None:
    """Install exactly these packages; settings of the user or the site for pip could write elsewhere."""
    python = str(request["python"])
    pip = [python, *_pip(python, wheels, has_pip=bool(request["pip"]))]
    printed: deque[str] = deque(maxlen=_LAST_LINES)
    options = ["--no-deps", "--no-index", "--find-links", str(wheels), "--no-cache-dir", "--disable-pip-version-check"]
    argv = [*pip, "--isolated", "install", "--target", str(folder), *options, *lines]
    environment = {**inherited(os.environ), "PIP_CONFIG_FILE": os.devnull, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        code = run_program(argv, deadline, printed.append, env=environment, cwd="/")
        problem = code and (" / ".join(printed) or f"exit code {code}")
    except TimeoutError:
        problem = "pip did not end in time"
    if problem:
        version = ".".join(str(request["version"]).split(".")[:2])
        raise RequestError(
            f"{folder} could not be built from {wheels}: {problem}; on a machine with a package index, "
            f"flagperf wheels fills a folder for this Python with --python-version={version}"
        )


if __name__ == "__main__":
    serve(handle)
