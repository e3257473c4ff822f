"""The runtime host: uses an existing Python and installs nothing."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.markers import default_environment

from pytest_flagperf.hosts import Host
from pytest_flagperf.hosts.deploy import Code
from pytest_flagperf.hosts.replies import TEXT, Each, Maybe, Shape

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
        lines = [line for line in union(request.requirements) if line.requirement]
        asked = {"python": python, "packages": [*map(_name, lines)], "env": dict(interpreter.env)}
        answer = ask(host, code, _MODULE, asked, timeout_s=_TIMEOUT_S, shape=_ANSWER, progress=progress)
        version, executable = answer["markers"]["python_full_version"], answer["executable"]
        lines = [*_applicable(lines, answer["markers"])]
        packages = {_name(line): answer["packages"][_name(line)] for line in lines}
        if missing := [line for line in lines if packages[_name(line)] is None]:
            raise RuntimeSetupError(f"{host.name}: {executable} (Python {version}) {_missing(missing, executable)}")
        progress(f"Python {version} at {executable}")
        path = tuple(answer["path"])
        label = f"host: {executable}" + (f" with PYTHONPATH={':'.join(path)}" if path else "")
        return replace(interpreter, python=executable, path=path, label=label, details={"python": version, **packages})

    def look(self, host: Host, request: RuntimeRequest, code: Code) -> Interpreter:
        return self.prepare(host, request, lambda _: None, code)

    def notes(self, request: RuntimeRequest, case: str) -> list[str]:
        if request.extension is None:
            return []
        name = request.extension_name
        return [f"{case}: {name} is built only into images; with --runtime=host the host's Python must already have it"]


RUNTIME = _Host()


def _name(line: RequirementLine) -> str:
    assert line.requirement is not None
    return line.requirement.name


def _pinned(line: RequirementLine) -> str:
    """Return the requirement without its marker, as a word for an installer."""
    assert line.requirement is not None
    return f"{line.requirement.name}{line.requirement.specifier}"


def _applicable(lines: Sequence[RequirementLine], markers: Mapping[str, str]) -> Iterator[RequirementLine]:
    """Yield the requirements that apply to the interpreter with these markers."""
    environment: dict[str, Any] = {**default_environment(), **markers}
    for line in lines:
        requirement = line.requirement
        if requirement and (requirement.marker is None or requirement.marker.evaluate(environment)):
            yield line


def _missing(lines: Sequence[RequirementLine], executable: str) -> str:
    """Return which packages are missing, the files that require them, and how to install them without an index."""
    by_file: dict[Path, list[str]] = {}
    for line in lines:
        by_file.setdefault(line.file, []).append(_name(line))
    listed = "; ".join(f"{', '.join(names)}, required by {_place(file)}" for file, names in by_file.items())
    packages = shlex.join(_pinned(line) for line in lines)
    install = f"{shlex.quote(executable)} -m pip install --no-deps"
    return (
        f"has no {listed}: set python in flagperf.toml to an interpreter that has them, or run {install} {packages};"
        f" without a package index, run pip wheel --no-deps -w wheels {packages} on a machine with one, copy the folder"
        f" wheels, and run {install} --no-index --find-links=wheels {packages}"
    )


def _place(file: Path) -> str:
    """Return the file's path below the folder that has suites/ and vendors/."""
    start = max((index for index, name in enumerate(file.parts) if name in ("suites", "vendors")), default=0)
    return Path(*file.parts[start:]).as_posix()
