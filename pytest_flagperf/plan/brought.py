"""What a vendor brings into a case beside its config: steps and hooks of its own, variables, packages, extensions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from flagperf_driver import addresses, extern
from flagperf_driver.launch import RESERVED_VARIABLES

from ..catalog import Suite, Vendor
from ..problems import Problems
from ..runtime import RuntimeSetupError, requirements

NONE = "none"
_IMPORTED = "imported by each rank"
_VARIABLE = re.compile(r"\s*(?:export\s+|declare\s+-x\s+)?([A-Za-z_]\w*)=.*")


@dataclass(frozen=True)
class Brought:
    """One such thing, what stands in its place without the vendor, and where it is from."""

    name: str
    value: str
    reference: str
    file: str
    line: int = 0

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


def brought(suite: Suite, vendor: Vendor, own: Path, *, in_image: bool) -> tuple[Brought, ...]:
    """Everything, of the vendor's folder and of ``own``, its folder for the suite; nothing of it is run."""
    maker = f"vendors/{vendor.name}"
    case = f"{maker}/{suite.folder}"
    with _shown(own, case):
        steps = extern.replaced_steps(own / "extern")
    with _shown(vendor.path, maker):
        hooks = extern.replaced_names(vendor.device_module, extern.HOOKS, "device hook") if vendor.device_module else {}
    found = [
        *_replaced("step", "the suite's", steps, vendor, f"{case}/extern/{extern.MODULE}.py"),
        *_replaced("hook", "the framework's", hooks, vendor, f"{maker}/device.py"),
        *_modules(vendor, maker, hooks),
        *_variables(vendor, maker, own, case),
        *_packages(suite, own, case),
        *_extensions(own, case, in_image=in_image),
    ]
    return tuple(found)


@contextmanager
def _shown(folder: Path, name: str) -> Iterator[None]:
    """Problems name files as hosts have them."""
    try:
        yield
    except extern.ExternError as error:
        raise Problems(problem.replace(str(folder), name) for problem in error.problems) from None


def _replaced(kind: str, whose: str, lines: Mapping[str, int], vendor: Vendor, file: str) -> Iterator[Brought]:
    for name, line in sorted(lines.items()):
        yield Brought(f"{kind} {name}", f"{vendor.name}'s own", f"{whose} own", file, line)


def _modules(vendor: Vendor, maker: str, hooks: Mapping[str, int]) -> Iterator[Brought]:
    """What each rank imports; of a ``device.py`` with hooks these are listed instead."""
    for name in vendor.toml.modules:
        yield Brought(f"module {name}", _IMPORTED, NONE, f"{maker}/vendor.toml")
    if vendor.device_module and not hooks:
        yield Brought(f"module {vendor.device_module.name}", _IMPORTED, NONE, f"{maker}/device.py")


def _variables(vendor: Vendor, maker: str, own: Path, case: str) -> Iterator[Brought]:
    """Their names: a value may be secret, and what a shell makes of it is known on the hosts only."""
    for name in sorted(vendor.environment):
        yield Brought(f"variable {name}", _told(name), NONE, f"{maker}/vendor.toml")
    file = own / "config" / "environment_variables.sh"
    place = f"{case}/config/{file.name}"
    text = file.read_text(encoding="utf-8-sig", errors="replace") if file.is_file() else ""
    for number, line in enumerate(text.splitlines(), 1):
        if found := _VARIABLE.fullmatch(line):
            yield Brought(f"variable {found[1]}", _told(found[1]), NONE, place, number)
    commands = [number for number, line in enumerate(text.splitlines(), 1) if _is_command(line)]
    if commands:
        yield Brought(f"script {file.name}", "run on each host", NONE, place, commands[0])


def _is_command(line: str) -> bool:
    """Whether a line of a shell's file does more than set a variable."""
    return bool(line.strip()) and not line.lstrip().startswith("#") and not _VARIABLE.fullmatch(line)


def _told(name: str) -> str:
    return "no effect, each rank is given its own" if name in RESERVED_VARIABLES else "set"


def _packages(suite: Suite, own: Path, case: str) -> Iterator[Brought]:
    """Those that the suite does not have so."""
    pinned = {name: wanted for name, wanted, _ in _wanted(suite.path / "requirements.txt")}
    for name, wanted, line in _wanted(own / "config" / "requirements.txt"):
        if pinned.get(name) != wanted:
            file = line.file.relative_to(own).as_posix() if line.file.is_relative_to(own) else str(line.file)
            yield Brought(f"package {name}", wanted or "any", pinned.get(name) or NONE, f"{case}/{file}", line.number)


def _wanted(file: Path) -> Iterator[tuple[str, str, requirements.RequirementLine]]:
    """Of each line its package, by the name that an index knows it by, and the version; an option as it is."""
    try:
        lines = list(requirements.read(file, ())) if file.is_file() else []
    except RuntimeSetupError as error:
        raise Problems([str(error)]) from None
    for line in lines:
        package = line.requirement
        if package is None:
            yield line.shown, "", line
        else:
            yield canonicalize_name(package.name), addresses.redacted_text(line.text[len(package.name) :].strip()), line


def _extensions(own: Path, case: str, *, in_image: bool) -> Iterator[Brought]:
    if (own / "csrc").is_dir():
        built = "built into the image" if in_image else "as the Python at hand has it"
        yield Brought("extension csrc", built, NONE, f"{case}/csrc")
