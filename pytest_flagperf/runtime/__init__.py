"""Where a rank's Python lives. A runtime is a module of this folder with a function ``prepare``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pytest_flagperf.cluster import Host

Progress = Callable[[str], None]


class RuntimeSetupError(RuntimeError):
    """There is no Python for the ranks; the text says what is missing and what to do."""


@dataclass(frozen=True)
class Wanted:
    """What the ranks' Python must have."""

    framework: str
    requirements: tuple[Path, ...] = ()  # files as pip reads them; a missing one is an error
    python: str | None = None  # the interpreter to use, or to build an environment with
    pip_source: str | None = None  # the package index to use, whatever else is configured
    timeout_s: float = 3600.0


@dataclass(frozen=True)
class Interpreter:
    """A Python that is ready on a host, and what its processes must have in their environment."""

    python: str
    env: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


class Runtime(Protocol):
    def __call__(self, host: Host, wanted: Wanted, progress: Progress) -> Interpreter: ...


def runtimes() -> dict[str, Runtime]:
    """Every runtime there is, by name: the modules of this folder that prepare an interpreter."""
    modules = {
        found.name: importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)
    }
    return {name: module.prepare for name, module in sorted(modules.items()) if hasattr(module, "prepare")}
