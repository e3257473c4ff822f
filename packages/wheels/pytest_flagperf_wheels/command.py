"""Fill a folder with wheels for a machine without a package index, and print its size.

The folder gets what the harness needs there, and what the selected suites need beside a framework that is installed
there (--runtime=host). What every suite of a framework needs is not in the folder, for example PyTorch and NumPy.
docs/offline.md describes how to use the folder.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from flagperf_driver import addresses
from flagperf_driver.node.environments.build import write_requirements
from pytest_flagperf.case import Case
from pytest_flagperf.catalog import Catalog, Suite, framework_of
from pytest_flagperf.commands import tree
from pytest_flagperf.engines.agents.environments import runtime_request
from pytest_flagperf.hosts.local import LocalHost
from pytest_flagperf.packages import OF_ONE_PART, need, requirement_name, requirements_of_this_package, uv_program
from pytest_flagperf.problems import Problems, near, some
from pytest_flagperf.results.figures.units import count
from pytest_flagperf.runtime import RuntimeSetupError
from pytest_flagperf.runtime.pip_settings import index_settings
from pytest_flagperf.runtime.requirements import read_lines
from pytest_flagperf.runtime.venv import spec_for
from pytest_flagperf.runtime.wheel_folder import read_wheels, requirement_text
from pytest_flagperf.settings import Settings, read_settings

_GLIBC = 28
"""The wheels run with glibc 2.28 and newer: the distributions of 2019 and later."""
_MACHINES = ("x86_64", "aarch64")
_VERSION = re.compile(r"3\.\d+")
_MISSING = re.compile(r"No matching distribution found for (\S+)")
_WORD = re.compile(r"[^\s()]+")
_OPERATORS = ("and", "or", "not")
_AT_ONCE = 8
_LAST_LINES = 5
_SHOWN = 6

Pins = Mapping[str, str]
"""Versions by the name of the package."""


EXAMPLE = "wheels -k pytorch --python-version=3.11"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=Path, help="the folder of the wheels; created if it is missing")
    suites = 'only the suites with these words in MODEL:FRAMEWORK, as in -k "pytorch and not MODEL" (default: all)'
    parser.add_argument("-k", dest="expression", metavar="EXPRESSION", default="", help=suites)
    parser.add_argument("--vendor", help="the vendor whose requirements are added (default: as for pytest)")
    own = "{}.{}".format(*sys.version_info)
    version = f"the version of Python on the other machine; may be repeated (default: this Python's, {own})"
    parser.add_argument("--python-version", metavar="3.N", action="append", help=version)
    machine = platform.machine() if platform.machine() in _MACHINES else _MACHINES[0]
    parser.add_argument(
        "--platform", choices=_MACHINES, default=machine, help=f"the other machine's platform (default: {machine})"
    )
    installed = "what pip freeze printed there: the packages that the other machine has, which are left out"
    parser.add_argument("--installed", metavar="FILE", type=Path, help=installed)


def run(arguments: argparse.Namespace) -> int:
    need("uv")
    versions = list(dict.fromkeys(arguments.python_version or ["{}.{}".format(*sys.version_info)]))
    if wrong := [version for version in versions if not _VERSION.fullmatch(version)]:
        raise Problems([f"--python-version={wrong[0]}: expected a version such as 3.12"])
    settings = read_settings({"vendor": arguments.vendor}, tree.root(), Path.cwd())
    suites = _Suites(tree.catalog(), settings)
    selected = suites.selected(arguments.expression)
    installed = _installed(arguments.installed) if arguments.installed else {}
    arguments.folder.mkdir(parents=True, exist_ok=True)
    try:
        for version in versions:
            target = _TargetPython(version, arguments.platform, settings.pip_source)
            print("\n".join(_fill(arguments.folder, target, suites, selected, installed)), flush=True)
    except RuntimeSetupError as error:
        raise Problems([str(error)]) from error
    wheels = list(arguments.folder.glob("*.whl"))
    print(f"{arguments.folder}: {count(len(wheels), 'wheel')}, {_megabytes(wheels)}")
    return 0


def _fill(
    folder: Path, target: _TargetPython, suites: _Suites, selected: Collection[str], installed: Pins
) -> Iterator[str]:
    """Download the wheels for one Python; yield lines about them."""
    required, of_framework = suites.requirements(target, selected)
    there = {*of_framework, *installed}
    own_lines = (line for line in requirements_of_this_package() if requirement_name(line) not in OF_ONE_PART)
    harness = target.resolve([*own_lines, "pip"])
    of_suites = {pin: users for pin, users in required.items() if pin[0] not in there and harness.get(pin[0]) != pin[1]}
    files = target.download([*harness.items(), *of_suites], folder)
    yield f"Python {target.version} on {target.machine} with glibc 2.{_GLIBC} or newer:"
    own = [files[pin] for pin in harness.items()]
    yield f"  {_megabytes(own):>9}  the harness ({count(len(own), 'wheel')})"
    dependencies = read_wheels(str(folder))
    kept = []
    for (name, version), users in of_suites.items():
        if problem := _misfit(dependencies[canonicalize_name(name)], installed):
            files[name, version].unlink()
            yield f"  not kept: {name} {version}: {problem} ({some(sorted(users), _SHOWN)})"
        else:
            kept.append((files[name, version], f"{name} {version} ({some(sorted(users), _SHOWN)})"))
    kept.sort(key=lambda entry: -entry[0].stat().st_size)
    yield from (f"  {_megabytes([file]):>9}  {text}" for file, text in kept)
    if needed := sorted({name for name, _ in required} & there):
        yield f"  the other machine's Python must have {some(needed, _SHOWN)}"


class _Suites:
    """The suites of the tree, and their requirements with those of the vendor."""

    def __init__(self, catalog: Catalog, settings: Settings) -> None:
        self._catalog, self._settings = catalog, settings
        self._suites = {suite.name: suite for suite in catalog.suites.values()}

    def selected(self, expression: str) -> Collection[str]:
        """Return the names of the suites that match; raise Problems if no suite does."""
        names = [name for name in self._suites if not expression or _matches(expression, name)]
        if not names:
            known = sorted({*self._suites, *(part for name in self._suites for part in name.split(":"))})
            raise Problems([f"-k {expression!r}: no suite matches{near(expression, known)}; flagperf list lists them"])
        return names

    def requirements(
        self, target: _TargetPython, selected: Collection[str]
    ) -> tuple[Mapping[tuple[str, str], set[str]], set[str]]:
        """Return the packages of the selected suites, each with its suites, and the packages of their frameworks.

        A package that every suite of a framework needs is one of the framework.
        """
        frameworks = {framework_of(self._suites[name]) for name in selected}
        concerned = {name: suite for name, suite in self._suites.items() if framework_of(suite) in frameworks}
        lines = {name: self._lines(suite) for name, suite in concerned.items()}
        distinct = set(lines.values())
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            resolved = dict(zip(distinct, pool.map(target.resolve, distinct), strict=True))
        pins = {name: resolved[lines[name]] for name in concerned}
        required: dict[tuple[str, str], set[str]] = {}
        for name in selected:
            for pin in pins[name].items():
                required.setdefault(pin, set()).add(name)
        of_frameworks = (
            set.intersection(
                *(set(pins[name]) for name, suite in concerned.items() if framework_of(suite) == framework)
            )
            for framework in frameworks
        )
        return required, set().union(*of_frameworks)

    def _lines(self, suite: Suite) -> tuple[str, ...]:
        """Return the requirements of a suite that a run with --runtime=host checks."""
        vendor = self._catalog.vendor(self._settings.vendor)
        case = Case(suite.model, suite.framework, next(iter(vendor.chips)), 1, 1, 1)
        request = runtime_request(self._settings, self._catalog, case, vendor, "host")
        return tuple(spec_for(LocalHost(), request)["requirements"])


@dataclass(frozen=True)
class _TargetPython:
    """The Python of the other machine, and where its packages come from."""

    version: str
    machine: str
    pip_source: str | None

    def resolve(self, lines: Sequence[str]) -> Pins:
        """Return the packages that these requirements need on the other machine."""
        words = ["pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version", self.version]
        words += ["--python-platform", f"{self.machine}-manylinux_2_{_GLIBC}"]
        with tempfile.TemporaryDirectory() as folder:
            done = self._uv([*words, *write_requirements(lines, Path(folder, "requirements.txt"))])
        if done.returncode != 0:
            raise Problems([f"no packages for Python {self.version} on {self.machine}: {_last(done.stderr)}"])
        pairs = (line.split(" ;")[0].partition("==") for line in done.stdout.splitlines() if "==" in line)
        return {canonicalize_name(name): version.strip() for name, _, version in pairs}

    def download(self, pins: Iterable[tuple[str, str]], folder: Path) -> Mapping[tuple[str, str], Path]:
        """Download the wheel of each package; build those that exist only as source and have no compiled part."""
        wanted = {f"{name}=={version}" for name, version in pins}
        get = ["pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
        get += ["--python-version", self.version, *(f"--platform={tag}" for tag in self._tags())]
        sources: set[str] = set()
        while (done := self._pip([*get, *sorted(wanted - sources)])).returncode != 0:
            missing = _MISSING.search(done.stderr)
            if missing is None or missing[1] not in wanted - sources:
                raise Problems([f"pip download failed: {_last(done.stderr)}"])
            sources.add(missing[1])
        for pin in sorted(sources):
            done = self._pip(["pip", "wheel", "--no-deps", "--wheel-dir", str(folder), pin])
            if done.returncode != 0:
                raise Problems([f"{pin}: no wheel, and it cannot be built from its source: {_last(done.stderr)}"])
        files = {}
        for file in folder.glob("*.whl"):
            name, version, _, tags = parse_wheel_filename(file.name)
            files[f"{name}=={version}"] = file
            if f"{name}=={version}" in sources and not all(tag.platform == "any" for tag in tags):
                file.unlink()
                there = "leave out what that machine has with --installed"
                raise Problems(
                    [f"{name}=={version}: no wheel, and its source must be compiled on the other machine; {there}"]
                )
        return {(pin.partition("==")[0], pin.partition("==")[2]): files[pin] for pin in wanted}

    def _tags(self) -> Iterator[str]:
        yield from (f"manylinux_2_{minor}_{self.machine}" for minor in range(_GLIBC, 4, -1))
        yield from (f"{name}_{self.machine}" for name in ("manylinux2014", "manylinux2010", "manylinux1"))

    def _pip(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run pip, which need not be installed beside the harness."""
        source = ["--index-url", self.pip_source] if self.pip_source else []
        return self._uv(["tool", "run", "--quiet", *words, "--quiet", *source])

    def _uv(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **index_settings(os.environ, self.pip_source), "NO_COLOR": "1"}
        return subprocess.run([uv_program(), *words], env=environment, capture_output=True, text=True, check=False)


def _installed(file: Path) -> Pins:
    """Return the packages that pip freeze printed; the version is empty for a package from an address."""
    try:
        found = [line.requirement for line in read_lines(file, ())]
    except RuntimeSetupError as error:
        raise Problems([f"--installed={file}: expected what pip freeze printed: {error}"]) from error
    return {
        canonicalize_name(one.name): next((pin.version for pin in one.specifier if pin.operator == "=="), "")
        for one in found
        if one
    }


def _misfit(dependencies: Iterable[Requirement], installed: Pins) -> str:
    """Return which of the dependencies the installed packages do not meet; empty if they meet all."""
    for one in dependencies:
        version = "" if one.marker else installed.get(canonicalize_name(one.name), "")
        if version and not one.specifier.contains(version, prereleases=True):
            return f"needs {requirement_text(one)}, the other machine has {version}"
    return ""


def _matches(expression: str, name: str) -> bool:
    """Return whether a name matches an expression of words with and, or, not and parentheses."""

    def truth(word: re.Match[str]) -> str:
        return word[0] if word[0] in _OPERATORS else str(word[0].lower() in name.lower())

    try:
        with warnings.catch_warnings(action="error"):  # "a (b)" is a warning of Python
            # Only True, False, the operators and parentheses are left.
            return bool(eval(_WORD.sub(truth, expression), {"__builtins__": {}}))  # noqa: S307
    except (SyntaxError, TypeError):
        raise Problems(
            [f'-k {expression!r}: expected words with and, or, not, as in "MODEL or (MODEL and pytorch)"']
        ) from None


def _megabytes(files: Iterable[Path]) -> str:
    return f"{sum(file.stat().st_size for file in files) / 1e6:,.1f} MB"


def _last(text: str) -> str:
    lines = [addresses.redacted_text(line.strip()) for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-_LAST_LINES:]) or "no output"
