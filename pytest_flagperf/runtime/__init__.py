"""Where a rank's Python lives. A runtime is a module of this folder with a function ``prepare``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pytest_flagperf.hosts import Host
from pytest_flagperf.hosts.deploy import Code

Progress = Callable[[str], None]


class RuntimeSetupError(RuntimeError):
    """There is no Python for the ranks; the text says what is missing and what to do."""


class BuildFailed(RuntimeSetupError):
    """An environment or an image could not be built: another try in the same run would fail as this one did."""


@dataclass(frozen=True)
class Image:
    """What the container of a case is made of and started with."""

    image: str | None = None  # given by its name: nothing is built
    image_by: str = ""  # who gave it, or the file that it is built from
    folder: Path | None = None  # where the vendor's Dockerfile for the framework is
    extras: Path | None = None  # the case's folder: its config/requirements.txt and csrc/ go into a second layer
    options: tuple[str, ...] = field(default=(), repr=False)  # may hold passwords; as the docker command line has them
    options_by: str = "container options"  # where they were given, for messages
    shm_size: str | None = None
    privileged_by: str | None = None  # which file asks for --privileged; the report says so


@dataclass(frozen=True)
class Wanted:
    """What the ranks' Python must have."""

    framework: str
    requirements: tuple[Path, ...] = ()  # files as pip reads them; a missing one is an error
    python: str | None = None  # the interpreter to use, or to build an environment with
    # The package index to use, whatever else is configured; its address may hold a password.
    pip_source: str | None = field(default=None, repr=False)
    # uv's settings under which an environment is built if its packages are found so, else without them.
    uv_settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    run: str = ""  # equal for all processes of a run, which builds nothing twice that failed
    timeout_s: float = 3600.0
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # names and values, for every rank
    environment_file: Path | None = None  # sourced once, with those set; what it exports goes to every rank
    image: Image | None = None


@dataclass(frozen=True)
class Mount:
    """A folder or file of the host that a container sees."""

    source: str
    target: str
    read_only: bool = True


class Container(Protocol):
    """A container to be: its image is on the host."""

    def create(
        self,
        host: Host,
        name: str,
        *,
        argv: Sequence[str],
        mounts: Sequence[Mount],
        devices: Sequence[int],
        labels: Mapping[str, str],
    ) -> Mapping[str, Any]:
        """Create it, do not start it; what the agent must know to do so: ``{"socket": ..., "id": ...}``.

        ``only_leased`` beside them says whether its processes see no devices but those.
        """


@dataclass(frozen=True)
class Interpreter:
    """A Python that is ready on a host, and what its processes must have in their environment."""

    python: str
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    label: str = ""
    details: Mapping[str, str] = field(default_factory=dict)
    container: Container | None = None


class Runtime(Protocol):
    def __call__(self, host: Host, wanted: Wanted, progress: Progress, code: Code) -> Interpreter:
        """Make it ready; called for several hosts at once from threads. ``code`` is what runs on the far side."""


def runtimes() -> dict[str, Runtime]:
    """Every runtime there is, by name: the modules of this folder that prepare an interpreter."""
    modules = {
        found.name: importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)
    }
    return {name: module.prepare for name, module in sorted(modules.items()) if hasattr(module, "prepare")}
