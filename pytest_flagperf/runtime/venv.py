"""One environment per framework, built with uv on first use and found again by what it was built from."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uv import find_uv_bin

from pytest_flagperf.cluster import Host
from pytest_flagperf.cluster.deploy import cache_root
from pytest_flagperf.cluster.local import LocalHost

from . import Interpreter, Progress, RuntimeSetupError, Wanted
from .pip_settings import index_settings
from .requirements import union

_LAST_LINES = 15
_LOCK_POLL_S = 0.2
# uv's own settings that change what gets installed; the rest (caches, concurrency, ...) only change how.
_RESULT_SETTINGS = (
    "UV_CONSTRAINT",
    "UV_DEFAULT_INDEX",
    "UV_EXCLUDE_NEWER",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_INDEX",
    "UV_INDEX_STRATEGY",
    "UV_INDEX_URL",
    "UV_NO_BINARY",
    "UV_NO_BUILD",
    "UV_NO_INDEX",
    "UV_OVERRIDE",
    "UV_PRERELEASE",
    "UV_RESOLUTION",
    "UV_TORCH_BACKEND",
)


@dataclass(frozen=True)
class _Environment:
    """Where an environment lies, and what is in it."""

    folder: Path
    requirements: tuple[str, ...]
    python: str
    settings: Mapping[str, str]

    @property
    def marker(self) -> Path:
        return self.folder / "complete.json"

    def beside(self, suffix: str) -> Path:
        return self.folder.with_name(self.folder.name + suffix)


def prepare(host: Host, wanted: Wanted, progress: Progress, code: Any = None) -> Interpreter:  # noqa: ARG001
    """The environment of ``wanted.framework``; of several who want it, one builds and the rest wait."""
    if not isinstance(host, LocalHost):
        raise RuntimeSetupError(f"{host.name}: environments are built here only; use --runtime=host")
    environment = _describe(wanted)
    deadline = time.monotonic() + wanted.timeout_s
    if not environment.marker.is_file():
        with _lock(environment.beside(".lock"), deadline, progress):
            if not environment.marker.is_file():
                _build(environment, wanted, deadline, progress)
    return _interpreter(environment)


def _describe(wanted: Wanted) -> _Environment:
    lines = tuple(sorted(line.text for line in union(wanted.requirements)))
    python = wanted.python or sys.executable
    settings = index_settings(os.environ, wanted.pip_source)
    effective = {**os.environ, **settings}
    content = {
        "requirements": lines,
        "python": [python, _version(python)],
        "platform": [sys.platform, platform.machine(), platform.libc_ver()],
        "settings": {name: effective[name] for name in _RESULT_SETTINGS if effective.get(name)},
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return _Environment(cache_root() / "venv" / f"{wanted.framework}-{digest}", lines, python, settings)


def _version(python: str) -> str:
    if python == sys.executable:
        return platform.python_version()
    argv = [python, "-c", "import platform; print(platform.python_version())"]
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        raise RuntimeSetupError(f"{python}: is not a Python that works: {error}") from error


def _build(environment: _Environment, wanted: Wanted, deadline: float, progress: Progress) -> None:
    folder, log = environment.folder, environment.beside(".log")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    uv = [find_uv_bin()]
    python = str(folder / "bin" / "python")
    requirements = environment.beside(".txt")
    requirements.write_text("\n".join(environment.requirements) + "\n", "utf-8")
    progress(f"building the {wanted.framework} environment in {folder}")
    try:
        log.write_bytes(b"")
        _uv(
            [*uv, "venv", "--no-project", "--python", environment.python, str(folder)],
            environment,
            deadline,
            progress,
        )
        _uv(
            [*uv, "pip", "install", "--python", python, "-r", str(requirements)],
            environment,
            deadline,
            progress,
        )
        listing = [*uv, "pip", "freeze", "--python", python]
        frozen = subprocess.run(listing, capture_output=True, text=True, check=True, timeout=60)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    details = {"python": _version(python), **dict(re.findall(r"(?m)^([^\s=]+)==(\S+)$", frozen.stdout))}
    partial = environment.marker.with_suffix(".partial")
    partial.write_text(json.dumps(details, indent=1), "utf-8")
    partial.replace(environment.marker)


def _uv(argv: Sequence[str], environment: _Environment, deadline: float, progress: Progress) -> None:
    """Run uv to its end; its lines go to the log and to ``progress``."""
    last: deque[str] = deque(maxlen=_LAST_LINES)
    process = subprocess.Popen(
        argv,
        cwd="/",  # not in a project, whose settings uv would take for ours
        env={**os.environ, **environment.settings, "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    alarm = threading.Timer(max(0.0, deadline - time.monotonic()), _kill, [process])
    with process, environment.beside(".log").open("a", encoding="utf-8") as log:
        alarm.start()
        try:
            for line in process.stdout or ():
                log.write(line)
                last.append(line.rstrip())
                progress(line.strip())
            code = process.wait()
        finally:
            alarm.cancel()
            _kill(process)
    if code != 0:
        raise RuntimeSetupError(_failure(argv, code, last, environment, late=time.monotonic() >= deadline))


def _failure(argv: Sequence[str], code: int, last: Sequence[str], environment: _Environment, *, late: bool) -> str:
    why = "did not end in time" if late else f"failed with exit code {code}"
    lines = "\n".join(f"  {line}" for line in last)
    return (
        f"the environment {environment.folder.name} could not be built: uv {argv[1]} {why}. Its last lines "
        f"(all of them: {environment.beside('.log')}):\n{lines}"
    )


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


@contextmanager
def _lock(path: Path, deadline: float, progress: Progress) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise RuntimeSetupError(f"{path}: another process is still building") from None
            if not told:
                progress("another process builds this environment; waiting for it")
                told = True
            time.sleep(_LOCK_POLL_S)
        yield


def _interpreter(environment: _Environment) -> Interpreter:
    bin_dir = environment.folder / "bin"
    env = {
        "VIRTUAL_ENV": str(environment.folder),
        "PATH": f"{bin_dir}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
    details = json.loads(environment.marker.read_text("utf-8"))
    return Interpreter(str(bin_dir / "python"), env, f"venv: {environment.folder.name}", details)
