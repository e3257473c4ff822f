"""The vendor's additions to a case beside its config: own steps, hooks, variables, packages, extensions, settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from packaging.utils import canonicalize_name

from flagperf_driver import addresses, extern
from flagperf_driver.rank_process import RESERVED_VARIABLES
from pytest_flagperf.stored.plan import KNOWN_PROBLEM, Addition

from ..case import Case
from ..catalog import Suite, Vendor, framework_of
from ..problems import Problems
from ..runtime import Runtime, RuntimeSetupError, environment_file, requirements
from . import vendor_settings

NONE = "none"
_IMPORTED = "imported by each rank"
_NAMED = r"\w+:(True|False|\d+)"
_PLAIN = re.compile(rf"(?!LD_|PYTHON)\w+=([A-Z0-9_]*|{_NAMED}(,{_NAMED})*)")
"""A variable whose value names no file and no module for a loader: a switch, a number, or a list of named ones."""


def find_additions(suite: Suite, vendor: Vendor, own: Path, case: Case, runtime: Runtime) -> tuple[Addition, ...]:
    """Find the additions to a case in the vendor's folder and in ``own``, its folder for the suite.

    None of the vendor's code runs.
    """
    vendor_folder = f"vendors/{vendor.name}"
    place = f"{vendor_folder}/{suite.folder}"
    with _host_paths(own, place):
        steps = extern.replaced_steps(own / "extern")
    with _host_paths(vendor.path, vendor_folder):
        module = vendor.device_module(framework_of(suite))
        hooks = extern.replaced_names(module, extern.HOOKS, "device hook") if module else {}
    additions = [
        *_replaced("step", "the suite's", steps, vendor, f"{place}/extern/{extern.MODULE}.py"),
        *_replaced("hook", "the framework's", hooks, vendor, f"{vendor_folder}/device.py"),
        *_modules(suite, vendor, vendor_folder, hooks),
        *_variables(vendor, vendor_folder, own, place),
        *_packages(suite, own, place),
        *_extensions(own, place, in_image=runtime.builds_images),
        *_known_problems(vendor, vendor_folder, str(case)),
        *_settings(vendor, vendor_folder, case, containers=runtime.uses_images),
    ]
    return tuple(additions)


@contextmanager
def _host_paths(folder: Path, name: str) -> Iterator[None]:
    """Replace the folder in the texts of problems by its name on the hosts."""
    try:
        yield
    except extern.ExternError as error:
        raise Problems(problem.replace(str(folder), name) for problem in error.problems) from None


def _replaced(kind: str, owner: str, lines: Mapping[str, int], vendor: Vendor, file: str) -> Iterator[Addition]:
    for name, line in sorted(lines.items()):
        yield Addition(f"{kind} {name}", f"{vendor.name}'s own", f"{owner} own", file, line)


def _modules(suite: Suite, vendor: Vendor, folder: str, hooks: Mapping[str, int]) -> Iterator[Addition]:
    """Yield the modules that each rank imports, without a ``device.py`` whose hooks are listed."""
    for name in vendor.toml.framework[framework_of(suite)].modules:
        yield Addition(f"module {name}", _IMPORTED, NONE, f"{folder}/vendor.toml")
    module = vendor.device_module(framework_of(suite))
    if module and not hooks:
        yield Addition(f"module {module.name}", _IMPORTED, NONE, f"{folder}/device.py")


def _variables(vendor: Vendor, folder: str, own: Path, case: str) -> Iterator[Addition]:
    """Yield the names of variables, not the values, which may be secret, and the commands of the hosts' shell."""
    for name in sorted(vendor.toml.environment):
        runs_code = not _PLAIN.fullmatch(f"{name}={vendor.toml.environment[name]}")
        yield Addition(f"variable {name}", _effect(name), NONE, f"{folder}/vendor.toml", runs_code=runs_code)
    file = own / "config" / environment_file.NAME
    place = f"{case}/config/{file.name}"
    for line in environment_file.read_lines(file) if file.is_file() else ():
        for name in line.names:
            yield Addition(f"variable {name}", _effect(name), NONE, place, line.number)
        if line.command:
            command = addresses.redacted_text(line.command)
            yield Addition(f"command {file.name}:{line.number}", command, NONE, place, line.number)


def _effect(name: str) -> str:
    return "no effect, the round sets it for each rank" if name in RESERVED_VARIABLES else "set"


def _packages(suite: Suite, own: Path, case: str) -> Iterator[Addition]:
    """Yield the packages that the suite does not require, or in another version, and the overrides of their pins."""
    pinned = {name: versions for name, versions, _ in _requirements(suite.path / "requirements.txt")}
    for name, versions, line in _requirements(own / "config" / "requirements.txt"):
        if pinned.get(name) != versions:
            file = line.file.relative_to(own).as_posix() if line.file.is_relative_to(own) else str(line.file)
            yield Addition(
                f"package {name}", versions or "any", pinned.get(name) or NONE, f"{case}/{file}", line.number
            )
    for name, versions, line in _requirements(own / "config" / requirements.OVERRIDES):
        yield Addition(f"override {name}", versions or "any", "as required", f"{case}/{line.file.name}", line.number)


def _requirements(file: Path) -> Iterator[tuple[str, str, requirements.RequirementLine]]:
    """Yield the package (its canonical name), the versions and the line of each requirement; options as they are."""
    try:
        lines = list(requirements.read_lines(file, ())) if file.is_file() else []
    except RuntimeSetupError as error:
        raise Problems([str(error)]) from None
    for line in lines:
        package = line.requirement
        if package is None:
            yield line.shown, "", line
        else:
            yield canonicalize_name(package.name), addresses.redacted_text(line.text[len(package.name) :].strip()), line


def _extensions(own: Path, case: str, *, in_image: bool) -> Iterator[Addition]:
    if (own / "csrc").is_dir():
        built = "built into the image" if in_image else "as installed in the hosts' Python"
        yield Addition("extension csrc", built, NONE, f"{case}/csrc")


def _known_problems(vendor: Vendor, folder: str, case: str) -> Iterator[Addition]:
    """Yield the problems that the vendor states of the case; they are shown and excuse nothing."""
    stated = [one.text for one in vendor.toml.known_problem if one.is_about(case)]
    for number, text in enumerate(stated, 1):
        yield Addition(f"{KNOWN_PROBLEM} {number}", text, NONE, f"{folder}/vendor.toml", runs_code=False)


def _settings(vendor: Vendor, folder: str, case: Case, *, containers: bool) -> Iterator[Addition]:
    """Yield the settings of vendor.toml that are not the defaults, and the files that no other addition lists."""
    for name, value, default, line in vendor_settings.settings(vendor, case.framework_name, case.hardware):
        key = name.removeprefix(vendor_settings.SETTING)
        runs_code = key.startswith(("container.", "images.") if containers else "uv.")
        yield Addition(name, value, default, f"{folder}/vendor.toml", line, runs_code)
    if (image := vendor.image(case.framework)) and image.folder:
        name = f"images/{image.folder.name}/Dockerfile"
        yield Addition(f"file {name}", "builds the image", NONE, f"{folder}/{name}", runs_code=containers)
    for name, effect in vendor_settings.FILES.items():
        if (vendor.path / name).is_file():
            yield Addition(f"file {name}", effect, NONE, f"{folder}/{name}", runs_code=False)
