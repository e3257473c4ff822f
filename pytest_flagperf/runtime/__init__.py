"""Where the Python of a case's ranks lives. A runtime is a module of this folder with a ``RUNTIME``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from pytest_flagperf.hosts import Host
from pytest_flagperf.hosts.deploy import Code

OnProgress = Callable[[str], None]
BUILT_BY = ("setup.py", "pyproject.toml")


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
    expected: str = ""  # vendors/<vendor>/images/<framework>/Dockerfile, for messages
    extras: Path | None = None  # the case's folder: its config/requirements.txt and csrc/ go into a second layer
    options: tuple[str, ...] = field(default=(), repr=False)  # may hold passwords; as the docker command line has them
    options_by: str = "container options"  # where they were given, for messages
    unreadable: str = ""  # why options that were given are no words, as an unclosed quote
    shm_size: str | None = None
    shm_size_by: str = "shm size"  # where it was given, for messages
    privileged_by: str | None = None  # which file asks for --privileged; the report says so
    unused: tuple[str, ...] = ()  # sentences on images of the vendor that the case does not use


@dataclass(frozen=True)
class RuntimeRequest:
    """What the Python of a case's ranks must have."""

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
    image: Image | None = None  # of a runtime that uses images
    extension: Path | None = None  # vendors/<vendor>/<model>-<framework>/csrc, which the ranks want built

    @property
    def extension_name(self) -> str:
        """The extension's folder, for messages."""
        return "/".join(self.extension.parts[-4:]) if self.extension else ""


@dataclass(frozen=True)
class EngineRequirements:
    """What preflight must find on a host that runs containers."""

    socket: str
    image: str
    image_is_ours: bool  # built from the vendor's folder where it is not there; else pulled


class Container(Protocol):
    """The parameters of a container that has not been created yet; its image is on the host."""

    def create(
        self,
        host: Host,
        *,
        argv: Sequence[str],
        log_dir: str,
        read_only: Sequence[str],
        devices: Sequence[int],
        labels: Mapping[str, str],
    ) -> Mapping[str, Any]:
        """Create it, do not start it; what the agent must know to do so: ``{"socket": ..., "id": ...}``.

        Its program runs in ``log_dir`` and sees the ``read_only`` folders of the host, all at their own paths.
        ``only_leased`` in the answer says whether it sees no devices but ``devices``.
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
    """One kind of place for the Python of a case's ranks. What stands here is true of one outside containers."""

    takes_python: bool = False
    """Whether the setting ``python`` names its interpreter."""
    uses_images: bool = False
    """Whether ranks run in containers, whose image has the Python and the case's extension."""
    needs: str = ""
    """What every host must have beside a Python."""

    def prepare(self, host: Host, request: RuntimeRequest, progress: OnProgress, code: Code) -> Interpreter:
        """Make it ready; called for several hosts at once from threads. ``code`` is what runs on the far side."""
        ...

    def check(self, request: RuntimeRequest) -> list[str]:
        """Return what stands in the way of a case, before any host is asked."""
        return unbuildable(request)

    def notes(self, request: RuntimeRequest, case: str) -> list[str]:  # noqa: ARG002
        """Return what a user may not expect of a case, a sentence each."""
        return []

    def image(self, request: RuntimeRequest) -> str:  # noqa: ARG002
        """Return what ``--plan`` says of the image; an empty text without one."""
        return ""

    def sees_all_devices(self, request: RuntimeRequest) -> bool:  # noqa: ARG002
        """Whether processes see devices of the host that are not their round's, unless a variable hides them."""
        return True

    def engine(self, request: RuntimeRequest) -> EngineRequirements | None:  # noqa: ARG002
        """Return what preflight must find where containers are used; RuntimeSetupError if no image is known."""
        return None


@cache
def runtimes() -> dict[str, Runtime]:
    """Every runtime there is, by name."""
    modules = {
        found.name: importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)
    }
    return {name: module.RUNTIME for name, module in sorted(modules.items()) if hasattr(module, "RUNTIME")}


def is_buildable(extension: Path) -> bool:
    """Whether pip would make something of a case's ``csrc/``."""
    return any((extension / name).is_file() for name in BUILT_BY)


def unbuildable(request: RuntimeRequest) -> list[str]:
    """A problem where the case has an extension that pip cannot build."""
    if request.extension is None or is_buildable(request.extension):
        return []
    name = request.extension_name
    return [f"{name} has neither setup.py nor pyproject.toml: it cannot be built; add one"]
