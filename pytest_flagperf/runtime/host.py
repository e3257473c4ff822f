"""The runtime host: uses an existing Python and installs nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from packaging.markers import default_environment

from pytest_flagperf.hosts import Host
from pytest_flagperf.hosts.deploy import Code
from pytest_flagperf.hosts.replies import TEXT, Each, Maybe, Shape, parse_object

from . import Interpreter, OnProgress, Runtime, RuntimeRequest, RuntimeSetupError
from .environment_file import with_environment_file
from .requirements import RequirementLine, union

_TIMEOUT_S = 60.0
_ANSWER: Shape = {
    "packages": Each(Maybe(TEXT)),
    "markers": Each(TEXT),
    "executable": TEXT,
}
# The name of a distribution and of its module can differ: either is accepted.
_INSPECT = """
import importlib.metadata as metadata, importlib.util as util, json, os, platform, sys
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "installed" if util.find_spec(name.replace("-", "_")) else None
packages = {name: version(name) for name in sys.argv[1:]}
markers = {
    "python_version": "%d.%d" % sys.version_info[:2], "python_full_version": platform.python_version(),
    "os_name": os.name, "sys_platform": sys.platform, "platform_machine": platform.machine(),
    "platform_system": platform.system(), "platform_release": platform.release(),
    "platform_version": platform.version(), "implementation_name": sys.implementation.name,
    "platform_python_implementation": platform.python_implementation(),
}
print(json.dumps({"packages": packages, "markers": markers, "executable": sys.executable}))
"""


class _Host(Runtime):
    takes_python = True

    def prepare(self, host: Host, request: RuntimeRequest, progress: OnProgress, code: Code) -> Interpreter:  # noqa: ARG002
        """Return ``request.python``, else ``python3`` on the PATH or the host's own, if it has all packages."""
        python = request.python or (host.is_local and shutil.which("python3")) or host.python
        lines = union(request.requirements)
        done = host.run([python, "-c", _INSPECT, *_names(lines)], timeout_s=_TIMEOUT_S)
        if done.code != 0:
            raise RuntimeSetupError(f"{host.name}: {python} does not work: {_last(done.err)}")
        answer = parse_object(host.name, done.out, _ANSWER, f"the answer of {python}")
        version, executable = answer["markers"]["python_full_version"], answer["executable"]
        packages = {name: answer["packages"][name] for name in _names(lines, answer["markers"])}
        missing = [name for name, version in packages.items() if version is None]
        if missing:
            raise RuntimeSetupError(
                f"{host.name}: {executable} (Python {version}) has no {', '.join(missing)}, required by"
                f" {request.framework} suites; install them there, set python in flagperf.toml, or use --runtime=venv"
            )
        progress(f"Python {version} at {executable}")
        interpreter = Interpreter(executable, {}, f"host: {executable}", {"python": version, **packages})
        return with_environment_file(host, interpreter, request.environment_file, request.environment)

    def look(self, host: Host, request: RuntimeRequest, code: Code) -> Interpreter:
        return self.prepare(host, request, lambda _: None, code)

    def notes(self, request: RuntimeRequest, case: str) -> list[str]:
        if request.extension is None:
            return []
        name = request.extension_name
        return [f"{case}: {name} is built only into images; with --runtime=host the host's Python must already have it"]


RUNTIME = _Host()


def _names(lines: Iterable[RequirementLine], markers: Mapping[str, str] | None = None) -> list[str]:
    """Return the names of the required packages; with ``markers``, of those that apply to the host."""
    parsed = [requirement for line in lines if (requirement := line.requirement)]
    environment: dict[str, Any] = {**default_environment(), **(markers or {})}
    return [
        requirement.name
        for requirement in parsed
        if not (markers and requirement.marker and not requirement.marker.evaluate(environment))
    ]


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1]
