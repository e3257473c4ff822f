"""A framework's environment on this host: its folder, and everything that determines its content."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

from flagperf_driver.node.environments import seal
from flagperf_driver.node.folder import cache_root
from flagperf_driver.node.request_server import Answer, Request, RequestError

_INTERPRETER_S = 30.0
_UV_FOLDERS = ("~/.local/bin", "~/.cargo/bin", "/usr/local/bin")  # where uv's installers put it
_CERTIFICATES = "SSL_CERT_FILE"
TRUE = ("1", "true", "yes", "on", "y", "t")  # the words of uv and pip
# The settings of uv that change what it installs; others (caches, concurrency, ...) only change how.
RESULT_SETTINGS = (
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
_FILES = ("UV_CONSTRAINT", "UV_OVERRIDE")  # their values are paths of files
_SHOWN_CHANGES = 3
# Prints the base interpreter: a virtual environment and its base interpreter must get the same environment.
_INTERPRETER = (
    "import json, os, platform, sys; print(json.dumps([os.path.realpath("
    "getattr(sys, '_base_executable', None) or sys.executable), platform.python_version()]))"
)


class BuildError(RequestError):
    """The environment could not be built; the text names what failed, with uv's last lines."""


@dataclass(frozen=True)
class Environment:
    """The folder of an environment, and what determines its content."""

    framework: str
    folder: Path
    requirements: tuple[str, ...]
    python: str
    version: str
    settings: Mapping[str, str]

    @property
    def marker(self) -> Path:
        return self.folder / "complete.json"

    def changes(self) -> Sequence[str]:
        """Return what makes the environment unusable: files that are not as they were built."""
        return seal.changes(self.folder) if self.marker.is_file() else ["it is not complete"]

    @property
    def executable(self) -> str:
        return str(self.folder / "bin" / "python")

    def beside(self, suffix: str) -> Path:
        return self.folder.with_name(self.folder.name + suffix)

    def answer(self) -> Answer:
        """Describe the environment, its variables and packages, and the facts of the host that a build needs."""
        changes = self.changes()
        more = [f"and {len(changes) - _SHOWN_CHANGES} more"] if len(changes) > _SHOWN_CHANGES else []
        return {
            "ready": not changes,
            "changed": ", ".join([*changes[:_SHOWN_CHANGES], *more]) if self.marker.is_file() else "",
            "name": self.folder.name,
            "python": self.executable,
            "env": {
                "VIRTUAL_ENV": str(self.folder),
                # New bytecode would be a change; the environment has bytecode of all its modules.
                "PYTHONDONTWRITEBYTECODE": "1",
                "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            },
            "details": {} if changes else json.loads(self.marker.read_text("utf-8")),
            "base": [self.python, self.version],
            "cache": str(self.folder.parent.parent),
            "uv_copies": sorted(map(str, self.folder.parent.parent.glob("bin/uv-*"))),
            "machine": platform.machine(),
            "libc": _libc_version(),
            "uv": _own_uv(),
        }


def describe(request: Request) -> Environment:
    """Return the requested environment; its name contains a digest of everything that determines its content."""
    lines = tuple(sorted(map(str, request["requirements"])))
    python, version = base_python(request.get("python"))
    settings = {str(name): str(value) for name, value in request.get("settings", {}).items()}
    if not Path(settings.get(_CERTIFICATES, "/")).exists():
        del settings[_CERTIFICATES]  # a file of the controller's machine; this host has its own
    effective = {**os.environ, **settings}
    content: dict[str, Any] = {
        "requirements": lines,
        "python": [python, version],
        "platform": [sys.platform, platform.machine(), _libc_version()],
        "settings": {name: effective[name] for name in RESULT_SETTINGS if effective.get(name)},
    }
    if files := [*_files(effective)]:
        content["files"] = files
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    framework = str(request["framework"])
    folder = cache_root() / "venv" / f"{framework}-{digest}"
    return Environment(framework, folder, lines, python, version, settings)


def _files(settings: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the settings that name files, and a digest of each file; uv reads these files from the root folder."""
    for name in _FILES:
        for path in settings.get(name, "").split():
            try:
                yield name, hashlib.sha256(Path("/", path).read_bytes()).hexdigest()
            except OSError as error:
                raise BuildError(f"{name}={path}: the file cannot be read: {error.strerror}") from None


def base_python(python: str | None) -> tuple[str, str]:
    """Return the real path and version of the base interpreter of ``python``, by default of this interpreter."""
    if not python:
        return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable), platform.python_version()
    argv = [python, "-I", "-c", _INTERPRETER]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_INTERPRETER_S)
        path, version = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise BuildError(f"{python}: not a working Python interpreter: {error}") from error
    return path, version


def _libc_version() -> str:
    """Return the version of glibc, by which wheels are selected; empty for another C library, for example musl."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ""


def _own_uv() -> str | None:
    """Return the uv that is installed on the host; its usual folders may be missing on the PATH over SSH."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *map(os.path.expanduser, _UV_FOLDERS)])
    return shutil.which("uv", path=path)
