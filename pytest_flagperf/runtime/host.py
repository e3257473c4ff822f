"""The runtime host: uses an existing Python and installs nothing."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.version import InvalidVersion

from pytest_flagperf.hosts import Host
from pytest_flagperf.hosts.deploy import Code
from pytest_flagperf.hosts.replies import TEXT, Each, Maybe, Shape
from pytest_flagperf.stored.plan import Deviation

from . import Interpreter, OnProgress, Runtime, RuntimeRequest, RuntimeSetupError
from .environment_file import with_environment_file
from .host_module import ask
from .requirements import RequirementLine, union

_MODULE = "flagperf_driver.node.environments.installed"
_TIMEOUT_S = 90.0
_ANSWER: Shape = {
    "packages": Each(Maybe(TEXT)),
    "markers": Each(TEXT),
    "executable": TEXT,
    "path": [TEXT],
}


class _Host(Runtime):
    takes_python = True
    shares_environment = False

    def prepare(self, host: Host, request: RuntimeRequest, progress: OnProgress, code: Code) -> Interpreter:
        """Return ``request.python``, else ``python3`` on the PATH or the host's own, if it has the case's packages."""
        python = request.python or (host.is_local and shutil.which("python3")) or host.python
        interpreter = with_environment_file(host, Interpreter(python), request.environment_file, request.environment)
        required = [_Required(found, line) for line in union(request.requirements) if (found := line.requirement)]
        names = [package.requirement.name for package in required]
        asked = {"python": python, "packages": names, "env": dict(interpreter.env)}
        answer = ask(host, code, _MODULE, asked, timeout_s=_TIMEOUT_S, shape=_ANSWER, progress=progress)
        version, executable = answer["markers"]["python_full_version"], answer["executable"]
        required = [package for package in required if package.is_for(answer["markers"])]
        installed = {package.requirement.name: answer["packages"][package.requirement.name] for package in required}
        if missing := [package for package in required if installed[package.requirement.name] is None]:
            raise RuntimeSetupError(f"{host.name}: {executable} (Python {version}) {_missing(missing, executable)}")
        progress(f"Python {version} at {executable}")
        path = tuple(answer["path"])
        return replace(
            interpreter,
            python=executable,
            path=path,
            label=f"host: {executable}" + (f" with PYTHONPATH={':'.join(path)}" if path else ""),
            details={"python": version, **installed},
            other_versions=tuple(filter(None, (package.deviation(installed) for package in required))),
        )

    def look(self, host: Host, request: RuntimeRequest, code: Code) -> Interpreter:
        return self.prepare(host, request, lambda _: None, code)

    def notes(self, request: RuntimeRequest, case: str) -> list[str]:
        if request.extension is None:
            return []
        name = request.extension_name
        return [f"{case}: {name} is built only into images; with --runtime=host the host's Python must already have it"]


RUNTIME = _Host()


@dataclass(frozen=True)
class _Required:
    """A required package and the line that requires it."""

    requirement: Requirement
    line: RequirementLine

    def __str__(self) -> str:
        return f"{self.requirement.name}{self.requirement.specifier}"

    @property
    def file(self) -> str:
        """The path of the requirements file below the folder that has suites/ and vendors/."""
        parts = self.line.file.parts
        start = max((index for index, name in enumerate(parts) if name in ("suites", "vendors")), default=0)
        return Path(*parts[start:]).as_posix()

    def is_for(self, markers: Mapping[str, str]) -> bool:
        """Return True if an interpreter with these markers needs the package."""
        environment: dict[str, Any] = {**default_environment(), **markers}
        return self.requirement.marker is None or self.requirement.marker.evaluate(environment)

    def deviation(self, installed: Mapping[str, str]) -> Deviation | None:
        """Return the installed and the required versions if they differ; a module without a version has any version."""
        name, required, version = self.requirement.name, self.requirement.specifier, installed[self.requirement.name]
        try:
            if version == "installed" or required.contains(version, prereleases=True):
                return None
        except InvalidVersion:
            pass
        return Deviation(name, version, str(required), self.file, self.line.number)


def _missing(packages: Sequence[_Required], executable: str) -> str:
    """Return which packages are missing, the files that require them, and how to install them without an index."""
    by_file: dict[str, list[str]] = {}
    for package in packages:
        by_file.setdefault(package.file, []).append(package.requirement.name)
    listed = "; ".join(f"{', '.join(names)}, required by {file}" for file, names in by_file.items())
    words = shlex.join(map(str, packages))
    install = f"{shlex.quote(executable)} -m pip install --no-deps"
    return (
        f"has no {listed}: set python in flagperf.toml to an interpreter that has them, or run {install} {words};"
        f" without a package index, run pip wheel --no-deps -w wheels {words} on a machine with one, copy the folder"
        f" wheels, and run {install} --no-index --find-links=wheels {words}"
    )
