"""The runtime venv: environments of packages on each host, built with uv on first use and reused by their inputs."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from flagperf_driver import addresses
from flagperf_driver.node.environments.build import OVERRIDE
from flagperf_driver.node.environments.environment import RESULT_SETTINGS, BuildError, describe
from pytest_flagperf.hosts import Host
from pytest_flagperf.hosts.deploy import Code
from pytest_flagperf.hosts.replies import COUNT, PATH, TEXT, TRUTH, Each, Maybe, Shape
from pytest_flagperf.packages import PackageMissing, need, uv_program

from . import (
    BuildFailed,
    Interpreter,
    OnProgress,
    Runtime,
    RuntimeRequest,
    RuntimeSetupError,
    is_buildable,
    unbuildable,
)
from .environment_file import with_environment_file
from .host_module import ask
from .pip_settings import index_settings
from .requirements import union

_MODULE = "flagperf_driver.node.environments.build"
_SEAL = "flagperf_driver.node.environments.seal"
_ANSWER_S = 60.0
_SIZE_S = 20.0
"""The longest time to ask an index for the size of an environment's packages."""
_ANSWER: Shape = {
    "ready": TRUTH,
    "changed": TEXT,
    "name": TEXT,
    "python": PATH,
    "env": Each(TEXT),
    "details": Each(TEXT),
    "cache": PATH,
    "uv_copies": [TEXT],
    "machine": TEXT,
    "libc": Maybe(TEXT),
    "uv": Maybe(TEXT),
    "unavailable": Maybe(TEXT),
    "packages?": Maybe(COUNT),
    "bytes?": Maybe(COUNT),
    "unreachable?": TEXT,
    "absent?": TEXT,
}
_CHANGES: Shape = {"changes": [TEXT]}
_COPY_S = 1800.0
_WRITE = """
import os, sys
target = sys.argv[1]
part = "%s.%d" % (target, os.getpid())
try:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        with open(part, "wb") as file:
            file.write(sys.stdin.buffer.read())
        os.chmod(part, 0o755)
        os.replace(part, target)
    except OSError:
        os.path.exists(part) and os.remove(part)
        raise
except OSError as error:
    sys.exit(error.strerror)
"""
"""Writes its input to an executable file."""
# Variables on how packages are fetched; on this machine all variables are inherited.
_PASSED = (*RESULT_SETTINGS, "UV_HTTP_TIMEOUT", "UV_INSECURE_HOST", "UV_NATIVE_TLS", "UV_OFFLINE")


class Unavailable(NamedTuple):
    """Why packages cannot be fetched."""

    reason: str = ""
    """Empty if they can be, or if an index that answers lacks them."""
    of_all: bool = False
    """Whether this holds for all packages: no index answers."""


class _Venv(Runtime):
    def prepare(self, host: Host, request: RuntimeRequest, progress: OnProgress, code: Code) -> Interpreter:
        """Return the environment of a case on a host; of several processes one builds it and the others wait.

        An environment whose files changed after it was built is built anew.
        """
        without, result = "", {}
        for spec in _specs(host, request):
            result = _look(host, code, spec, progress)
            if result["changed"]:
                progress(
                    f"warning: {result['name']} changed after it was built ({result['changed']}): building it anew"
                )
            if not result["ready"] and not result["unavailable"]:
                result = _build(host, code, request, spec, _uv(host, result, progress), progress)
            if result["ready"]:
                break
            without = _without(request)
        return _interpreter(host, request, result, without)

    def look(self, host: Host, request: RuntimeRequest, code: Code) -> Interpreter | None:
        for without, spec in zip(("", _without(request)), _specs(host, request), strict=False):
            result = _look(host, code, spec, lambda _: None)
            if not result["unavailable"]:
                return _interpreter(host, request, result, without) if result["ready"] else None
        return None

    def is_unchanged(self, host: Host, interpreter: Interpreter, code: Code) -> bool:
        asked = {"folder": str(PurePosixPath(interpreter.python).parents[1])}  # no variable, which a vendor could set
        found = ask(host, code, _SEAL, asked, timeout_s=_ANSWER_S, shape=_CHANGES, progress=lambda _: None)
        return not found["changes"]

    def to_build(self, host: Host, request: RuntimeRequest, code: Code) -> str:
        for result in _sizes(host, request, code):
            if result["packages"] is not None:
                size = "of unknown size" if result["bytes"] is None else f"of {result['bytes'] / 1e6:,.0f} MB"
                return f"{result['packages']} package{'' if result['packages'] == 1 else 's'} {size}"
        return "its size is unknown"

    def exists(self, host: Host, request: RuntimeRequest) -> bool:
        """Return True if this machine has an environment for the request, without a check of its files."""
        try:
            return any(describe(spec).marker.is_file() for spec in _specs(host, request))
        except BuildError:
            return False  # the build reports it

    def unavailable(self, host: Host, request: RuntimeRequest, code: Code) -> Unavailable:
        """Return why no index and no folder of wheels serves an environment's packages."""
        try:
            need("uv")
        except PackageMissing as error:
            return Unavailable(str(error))
        why = Unavailable()
        for result in _sizes(host, request, code):
            if result["packages"] is not None:
                return Unavailable()
            why = Unavailable(result["unreachable"] or result["absent"], of_all=bool(result["unreachable"]))
        return why

    def check(self, request: RuntimeRequest) -> list[str]:
        if request.extension is None or not is_buildable(request.extension):
            return unbuildable(request)
        return [
            f"{request.extension_name} is built only into images, which --runtime=venv does not use: use"
            " --runtime=docker, or --runtime=host with a Python that has it"
        ]


RUNTIME = _Venv()


def _specs(host: Host, request: RuntimeRequest) -> list[dict[str, Any]]:
    """Return the possible environments, the preferred one first."""
    plain, settings = spec_for(host, request), dict(request.uv_settings)
    # An index or a uv setting of the user has priority over the vendor's settings.
    if not settings or request.pip_source or request.wheels or not settings.keys().isdisjoint(plain["settings"]):
        return [plain]
    return [{**plain, "settings": {**plain["settings"], **settings}, "optional": True}, plain]


def _look(host: Host, code: Code, spec: dict[str, Any], progress: OnProgress) -> dict[str, Any]:
    """Return the description of an environment, which is not built."""
    return _ask(host, code, {"op": "look", **spec}, _ANSWER_S, progress)


def _sizes(host: Host, request: RuntimeRequest, code: Code) -> Iterator[dict[str, Any]]:
    """Yield what a build of each possible environment would fetch."""
    for spec in _specs(host, request):
        result = _look(host, code, spec, lambda _: None)
        if not result["unavailable"]:
            asked = {"op": "size", **spec, "uv": _uv(host, result, lambda _: None), "timeout_s": _SIZE_S}
            yield _ask(host, code, asked, _SIZE_S + _ANSWER_S, lambda _: None)


def _without(request: RuntimeRequest) -> str:
    return f", without the vendor's {_vendors_settings(request)}: no packages were found with it"


def _interpreter(host: Host, request: RuntimeRequest, result: Mapping[str, Any], without: str) -> Interpreter:
    label = f"venv: {result['name']}{without}"
    interpreter = Interpreter(result["python"], result["env"], label, result["details"])
    return with_environment_file(host, interpreter, request.environment_file, request.environment)


def _build(
    host: Host, code: Code, request: RuntimeRequest, spec: dict[str, Any], uv: str, progress: OnProgress
) -> dict[str, Any]:
    """Build an environment; return its description, which says why an optional one was not built."""
    build = {"op": "build", **spec, "uv": uv, "timeout_s": request.timeout_s}
    try:
        result = _ask(host, code, build, request.timeout_s + _ANSWER_S, progress)
    except RuntimeSetupError as error:
        raise BuildFailed(str(error)) from error
    if result["unavailable"]:  # empty if another process of the run has reported the reason
        settings = _vendors_settings(request)
        progress(
            f"warning: no packages with {settings}: {result['unavailable']}; building with the default packages, which"
            " may be several GB larger"
        )
    return result


def _vendors_settings(request: RuntimeRequest) -> str:
    return " ".join(f"{name}={addresses.redacted(value)}" for name, value in request.uv_settings)


def spec_for(host: Host, request: RuntimeRequest) -> dict[str, Any]:
    settings = {name: os.environ[name] for name in _PASSED if os.environ.get(name)}
    overrides = [f"{OVERRIDE}{line.text}" for line in union(request.overrides)]
    return {
        "framework": request.framework,
        "requirements": [*(line.text for line in union(request.requirements)), *overrides],
        "python": request.python,
        # The same settings on every host, so that all hosts get the same packages.
        "settings": {**settings, **index_settings(os.environ, request.pip_source, request.wheels)},
        "advice": _advice(host, request),
        "run": request.run,
    }


def _advice(host: Host, request: RuntimeRequest) -> str:
    """Return how to choose another Python, if the packages do not support this one."""
    if request.python:
        return "set python in flagperf.toml to another one"
    if host.is_local:
        return "run pytest with another Python"
    return "set another Python with python = ... in [cluster] of flagperf.toml"


def _ask(host: Host, code: Code, message: dict[str, Any], timeout_s: float, progress: OnProgress) -> dict[str, Any]:
    return ask(host, code, _MODULE, message, timeout_s=timeout_s, shape=_ANSWER, progress=progress)


def _uv(host: Host, result: dict[str, Any], progress: OnProgress) -> str:
    """Return the path of uv on the host: a copy of this machine's uv if it runs there, else the host's own."""
    try:
        own_uv = uv_program()
    except PackageMissing as error:
        raise RuntimeSetupError(f"{error}, or use --runtime=host") from None
    if host.is_local:
        return own_uv
    if result["machine"] == platform.machine() and str(result["libc"]).startswith("glibc"):
        target = f"{result['cache']}/bin/uv-{_hash(own_uv)}"
        if target not in result["uv_copies"]:
            content = Path(own_uv).read_bytes()
            progress(f"copying uv to {host.name} ({len(content) / 1e6:.0f} MB)")
            _write_program(host, target, content)
        return target
    if result["uv"]:
        return str(result["uv"])
    raise RuntimeSetupError(
        f"{host.name}: no usable uv: this machine's uv is for {platform.machine()} with glibc, the "
        f"host is {result['machine']} with {result['libc'] or 'another C library'}; install uv there, on the PATH or "
        "in ~/.local/bin, or use --runtime=host or docker"
    )


@lru_cache(maxsize=1)
def _hash(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]


def _write_program(host: Host, target: str, content: bytes) -> None:
    """Write an executable file on the host, completely or not at all."""
    done = host.run([host.python, "-I", "-S", "-c", _WRITE, target], timeout_s=_COPY_S, stdin=content)
    if done.code != 0:
        raise RuntimeSetupError(f"{host.name}: cannot write {target}: {done.err.strip()}")
