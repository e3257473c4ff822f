"""What a vendor brings into a case beside its config: steps and hooks of its own, variables, packages, extensions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flagperf_driver import extern

from ..catalog import Suite, Vendor
from ..problems import Problems, without_credentials

OWN = "the suite's own"
NONE = "none"
_VARIABLE = re.compile(r"\s*(?:export\s+|declare\s+-x\s+)?([A-Za-z_]\w*)=(.*)")
_REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*)\s*(.*)")


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


def brought(suite: Suite, vendor: Vendor, own: Path, runtime: str) -> tuple[Brought, ...]:
    """Everything, of the vendor's folder and of ``own``, its folder for the suite; nothing of it is run."""
    maker = f"vendors/{vendor.name}"
    case = f"{maker}/{suite.folder}"
    found = [
        *_replaced(vendor, own, case),
        *_hooks(vendor, maker),
        *_variables(vendor, maker, own, case),
        *_requirements(suite, own, case),
        *_extensions(own, case, runtime),
    ]
    return tuple(found)


def _replaced(vendor: Vendor, own: Path, case: str) -> Iterator[Brought]:
    try:
        steps = extern.replaced(own / "extern")
    except extern.ExternError as error:
        raise Problems(problem.replace(str(own), case) for problem in error.problems) from None
    file = f"{case}/extern/{extern.MODULE}.py"
    yield from (
        Brought(f"step {name}", f"{vendor.name}'s own", OWN, file, line) for name, line in sorted(steps.items())
    )


def _hooks(vendor: Vendor, maker: str) -> Iterator[Brought]:
    path = vendor.path / "device.py"
    if not path.is_file():
        return
    try:
        hooks = extern.named(path, extern.HOOKS, "hook of a device")
    except extern.ExternError as error:
        raise Problems(problem.replace(str(vendor.path), maker) for problem in error.problems) from None
    file = f"{maker}/device.py"
    yield from (
        Brought(f"hook {name}", f"{vendor.name}'s own", OWN, file, line) for name, line in sorted(hooks.items())
    )


def _variables(vendor: Vendor, maker: str, own: Path, case: str) -> Iterator[Brought]:
    """As they are written: what a shell makes of them is known on the hosts only."""
    for name, value in sorted(vendor.environment.items()):
        yield Brought(f"variable {name}", without_credentials(value), NONE, f"{maker}/vendor.toml")
    file = f"{case}/config/environment_variables.sh"
    for number, line in _lines(own / "config" / "environment_variables.sh"):
        if found := _VARIABLE.fullmatch(line):
            yield Brought(f"variable {found[1]}", without_credentials(found[2]), NONE, file, number)


def _requirements(suite: Suite, own: Path, case: str) -> Iterator[Brought]:
    """Those that the suite does not have so."""
    pinned = {name: wanted for _, name, wanted in _wanted(suite.path / "requirements.txt")}
    file = f"{case}/config/requirements.txt"
    for number, name, wanted in _wanted(own / "config" / "requirements.txt"):
        if pinned.get(name) != wanted:
            yield Brought(f"package {name}", wanted or "any", pinned.get(name) or NONE, file, number)


def _wanted(file: Path) -> Iterator[tuple[int, str, str]]:
    """Of each line its package, by the name that an index knows it by, and the version."""
    for number, line in _lines(file):
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        if found := _REQUIREMENT.fullmatch(text):
            yield number, re.sub(r"[-_.]+", "-", found[1]).lower(), found[2]
        elif text:
            yield number, text, ""


def _extensions(own: Path, case: str, runtime: str) -> Iterator[Brought]:
    if (own / "csrc").is_dir():
        built = "built into the image" if runtime == "docker" else "as the Python at hand has it"
        yield Brought("extension csrc", built, NONE, f"{case}/csrc")


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    return iter(enumerate(text.splitlines(), 1))
