"""The parts of pytest-flagperf that are packages of their own, and the packages that only one part needs."""

from __future__ import annotations

import re
import threading
import tomllib
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .problems import Problems

OWN = "pytest-flagperf"
CHECKOUT = Path(__file__).parents[1]
"""The folder of the checkout that runs, if one does."""
OF_ONE_PART = {
    "docker": "--runtime=docker needs",
    "fabric": "--cluster needs",
    "pandas": "tables need",
    "pyarrow": "tables need",
    "pyyaml": "host.yaml needs",
    "uv": "--runtime=venv and flagperf wheels need",
}
"""The packages that only one part imports; a run on this machine with --runtime=host needs none of them."""

_MODULES = {"pyyaml": "yaml"}
"""The modules whose names differ from their packages."""
_FINDING_UV = threading.Lock()
_PARTS = {
    "modelarts": "--engine=modelarts, the table [engines.modelarts] and the command flagperf-modelarts",
    "mlperf": "flagperf export --format=mlperf",
    "watch": "the command flagperf watch",
}
"""The parts that are packages of their own, and what each has."""


def advice(part: str) -> str | None:
    """Return what to install for a part that is a package of its own; None for any other name."""
    if part not in _PARTS:
        return None
    install = f"pip install packages/{part} in a checkout, or the wheel that make wheel builds there"
    return f"{install}; it has {_PARTS[part]}"


class PackageMissing(Problems):
    """A package of ``OF_ONE_PART`` is not installed; the message has the command that installs it."""


def need(*packages: str) -> None:
    """Raise PackageMissing unless the packages, which are in ``OF_ONE_PART``, can be imported."""
    missing = [name for name in packages if find_spec(_MODULES.get(name, name)) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        names, words = " and ".join(missing), " ".join(missing)
        raise PackageMissing([f"{OF_ONE_PART[missing[0]]} {names}, which {verb} not installed: pip install {words}"])


def uv_program() -> str:
    """Return the path of this machine's uv; raise PackageMissing without the package."""
    need("uv")
    from uv import find_uv_bin

    # Until Python 3.12, a thread gets no variables of sysconfig while another thread reads them for the first time.
    with _FINDING_UV:
        path: str = find_uv_bin()
    return path


def requirements_of_this_package() -> list[str]:
    """Return what pytest-flagperf itself requires, one requirement of pip each: of the checkout, else as installed."""
    if project := project_of_checkout():
        return list(project["dependencies"])
    return [line for line in requires(OWN) or () if "extra ==" not in line]


def project_of_checkout() -> dict[str, Any] | None:
    """Return the table [project] of the checkout, installed or not; None if a wheel is installed."""
    file = CHECKOUT / "pyproject.toml"
    return tomllib.loads(file.read_text("utf-8"))["project"] if file.is_file() else None


def requirement_name(requirement: str) -> str:
    """Return the name of the package that a requirement of pip names."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
