"""The runtime host: an existing Python, to which nothing is installed.

What it lacks comes from the folder ``wheels``, into a folder of the cache that precedes the Python's own packages.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from pytest_flagperf.hosts import Host
from pytest_flagperf.hosts.deploy import Code
from pytest_flagperf.hosts.replies import PATH, TEXT, Each, Maybe, Shape
from pytest_flagperf.stored.plan import Deviation

from . import Interpreter, OnProgress, Runtime, RuntimeRequest, RuntimeSetupError
from .environment_file import with_environment_file
from .host_module import ask
from .requirements import RequirementLine, required_by_all, union
from .wheel_folder import applies, read_wheels, requirement_text, with_dependencies

_INSTALLED = "flagperf_driver.node.environments.installed"
_OVERLAY = "flagperf_driver.node.environments.overlay"
_INSPECT_S = 90.0
_ANSWER: Shape = {
    "packages": Each(Maybe(TEXT)),
    "markers": Each(TEXT),
    "executable": TEXT,
    "base": TEXT,
    "path": [PATH],
}
_FOLDER: Shape = {"folder": TEXT}
_PIP = "pip"


class _Host(Runtime):
    takes_python = True

    def prepare(self, host: Host, request: RuntimeRequest, progress: OnProgress, code: Code) -> Interpreter:
        """Return ``request.python``, else the first ``python3`` on the PATH or the host's own, with all packages."""
        interpreter = _find(host, request, code, progress, "build")
        assert interpreter is not None
        return interpreter

    def look(self, host: Host, request: RuntimeRequest, code: Code) -> Interpreter | None:
        return _find(host, request, code, lambda _: None, "look")

    def notes(self, request: RuntimeRequest, case: str) -> list[str]:
        if request.extension is None:
            return []
        name = request.extension_name
        return [f"{case}: {name} is built only into images; with --runtime=host the host's Python must already have it"]


RUNTIME = _Host()


@dataclass(frozen=True)
class _Required:
    """A required package and the line that requires it."""

    package: Requirement
    line: RequirementLine

    @property
    def place(self) -> tuple[str, ...]:
        """The parts of the file's path from suites or vendors on."""
        parts = self.line.file.parts
        return parts[max((index for index, name in enumerate(parts) if name in ("suites", "vendors")), default=0) :]

    def deviation(self, version: str) -> Deviation | None:
        """Return the installed and the required version if they differ; a module without a version has any version."""
        try:
            if version == "installed" or self.package.specifier.contains(version, prereleases=True):
                return None
        except InvalidVersion:
            pass
        name, file = self.package.name, Path(*self.place).as_posix()
        return Deviation(name, version, str(self.package.specifier), file, self.line.number)


def _find(host: Host, request: RuntimeRequest, code: Code, progress: OnProgress, op: str) -> Interpreter | None:
    """Return the first Python that has the packages; the error of the first Python if none has them."""
    errors: list[RuntimeSetupError] = []
    for python in _pythons(host, request):
        try:
            return _Site(host, request, code, progress, python).find(op)
        except RuntimeSetupError as error:
            errors.append(error)
    raise errors[0]


def _pythons(host: Host, request: RuntimeRequest) -> Iterable[str]:
    if request.python:
        return [request.python]
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep) if host.is_local else []
    return dict.fromkeys([*filter(None, (shutil.which("python3", path=folder) for folder in folders)), host.python])


class _Site:
    """The installed Python of a host, and the folder of wheels for what it lacks."""

    def __init__(self, host: Host, request: RuntimeRequest, code: Code, progress: OnProgress, python: str) -> None:
        self._host, self._request, self._code, self._progress = host, request, code, progress
        self._base = with_environment_file(host, Interpreter(python), request.environment_file, request.environment)
        self._required = [_Required(found, line) for line in union(request.requirements) if (found := line.requirement)]
        self._wheels = read_wheels(request.wheels) if request.wheels else {}

    def find(self, op: str) -> Interpreter | None:
        """Return the interpreter with all required packages; None after a look if an overlay must be built for it.

        RuntimeSetupError if packages are missing, also in the folder of wheels.
        """
        answer, missing = self._inspect()
        lacking: Sequence[Requirement] = [one.package for one in missing]
        if missing and self._wheels:
            lacks = {canonicalize_name(name) for name, version in answer["packages"].items() if version is None}
            added = with_dependencies(lacking, self._wheels, lacks, answer["markers"])
            lacking = [package for package in added if canonicalize_name(package.name) not in self._wheels]
            if not lacking:
                if not (folder := self._overlay(answer, added, op)):
                    return None
                answer, _ = self._inspect(folder)
        if lacking:
            raise RuntimeSetupError(self._advice(answer, missing, lacking))
        self._progress(f"Python {answer['markers']['python_full_version']} at {answer['executable']}")
        return self._interpreter(answer)

    def _inspect(self, overlay: str = "") -> tuple[dict[str, Any], list[_Required]]:
        """Return what the interpreter is and has, with the overlay, and the required packages that are missing."""
        look = self._request.shared
        of_wheels = (one.name for dependencies in self._wheels.values() for one in dependencies)
        names = {_PIP, *(one.package.name for one in self._required), *self._wheels, *of_wheels}
        asked = {
            "python": self._base.python,
            "packages": sorted(names | look.packages if look else names),
            "env": dict(self._base.env),
            "first": [overlay] if overlay else [],
        }
        ask = partial(self._ask, _INSTALLED, asked, _ANSWER, _INSPECT_S)
        answer = look.answer(asked, ask) if look and not overlay else ask()
        return answer, [one for one in self._needed(answer) if answer["packages"][one.package.name] is None]

    def _overlay(self, answer: Mapping[str, Any], packages: Sequence[Requirement], op: str) -> str:
        """Return the folder with these packages; after a look it is empty if it is not built yet."""
        asked = {
            "op": op,
            "python": answer["executable"],
            "version": answer["markers"]["python_full_version"],
            "requirements": [*map(requirement_text, packages)],
            "wheels": self._request.wheels,
            "pip": answer["packages"][_PIP] is not None,
            "timeout_s": self._request.timeout_s,
        }
        return str(self._ask(_OVERLAY, asked, _FOLDER, self._request.timeout_s + _INSPECT_S)["folder"])

    def _interpreter(self, answer: Mapping[str, Any]) -> Interpreter:
        """Return the interpreter that has all required packages."""
        executable, path = answer["executable"], tuple(answer["path"])
        installed = {one.package.name: str(answer["packages"][one.package.name]) for one in self._needed(answer)}
        others = (one.deviation(installed[one.package.name]) for one in self._needed(answer))
        return replace(
            self._base,
            python=executable,
            path=path,
            label=f"host: {executable}" + (f" with PYTHONPATH={':'.join(path)}" if path else ""),
            details={"python": answer["markers"]["python_full_version"], **installed},
            other_versions=tuple(filter(None, others)),
        )

    def _advice(self, answer: Mapping[str, Any], missing: Sequence[_Required], lacking: Sequence[Requirement]) -> str:
        """Return which packages are missing, the files that require them, and how to get them without an index.

        The folder of wheels, if any, has none of ``lacking``. ``flagperf wheels`` leaves out the framework's packages.
        """
        by_file: dict[tuple[str, ...], list[str]] = {}
        for one in missing:
            by_file.setdefault(one.place, []).append(one.package.name)
        listed = "; ".join(f"{', '.join(names)}, required by {Path(*place)}" for place, names in by_file.items())
        executable, version = answer["executable"], answer["markers"]["python_full_version"]
        of = f", a virtual environment of {answer['base']}" if answer["base"] else ""
        words = shlex.join(requirement_text(one.package) for one in missing)
        suites = " or ".join(dict.fromkeys(":".join(place[1:3]) for place in by_file if place[0] == "suites"))
        wheels = self._request.wheels
        fill = ["flagperf", "wheels", Path(wheels or "wheels").name]
        fill += [f"--python-version={'.'.join(version.split('.')[:2])}", *(["-k", suites] if suites else [])]
        absent = f" ({wheels} has no wheel of {', '.join(package.name for package in lacking)})" if wheels else ""
        common = required_by_all(self._request.of_framework)
        framework = ", ".join(one.package.name for one in missing if canonicalize_name(one.package.name) in common)
        without_index = (
            f"flagperf wheels does not fetch {framework}, which every suite of {self._request.framework} needs"
            if framework
            else f"without a package index, run {shlex.join(fill)} on a machine with one, copy the folder, and pass"
            f" --wheels={wheels or 'wheels'}"
        )
        return (
            f"{self._host.name}: {executable} (Python {version}{of}) has no {listed}{absent}: set python in"
            f" flagperf.toml to an interpreter that has {framework or 'them'}, or run {shlex.quote(executable)} -m pip"
            f" install {words}; {without_index}"
        )

    def _needed(self, answer: Mapping[str, Any]) -> list[_Required]:
        return [one for one in self._required if applies(one.package, answer["markers"])]

    def _ask(self, module: str, request: dict[str, Any], shape: Shape, timeout_s: float) -> dict[str, Any]:
        progress = self._progress
        return ask(self._host, self._code, module, request, timeout_s=timeout_s, shape=shape, progress=progress)
