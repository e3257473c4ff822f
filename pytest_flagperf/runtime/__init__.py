"""Runtimes: they provide the Python of a case's ranks. Each module of this folder with a ``RUNTIME`` is a runtime."""

from __future__ import annotations

import importlib
import json
import pkgutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from pytest_flagperf.hosts import Completed, Host
from pytest_flagperf.hosts.deploy import Code
from pytest_flagperf.stored.plan import Deviation

OnProgress = Callable[[str], None]
BUILT_BY = ("setup.py", "pyproject.toml")
BUILD_S = 3600.0
"""The longest time in which a host may build an environment, or pull or build an image."""


class RuntimeSetupError(RuntimeError):
    """The Python for the ranks cannot be prepared; the message says what is missing and how to fix it."""


class BuildFailed(RuntimeSetupError):
    """An environment or an image could not be built; the build is not repeated in the same run."""


@dataclass(frozen=True)
class Image:
    """The image of a case's container, and the options that start it."""

    image: str | None = None  # name of an existing image; None: an image is built
    image_source: str = ""  # where the image was given, or the file that it is built from
    folder: Path | None = None  # folder of the vendor's Dockerfile for the framework
    expected: str = ""  # vendors/<vendor>/images/<framework>/Dockerfile, for messages
    extras: Path | None = None  # the case's folder: config/requirements.txt and csrc/ are added to the image
    options: tuple[str, ...] = field(default=(), repr=False)  # of docker run; may contain passwords
    options_source: str = "container options"  # where the options were given, for messages
    unreadable: str = ""  # why the options cannot be split, for example an unclosed quote
    privileged_source: str | None = None  # the file that sets --privileged, for the report


class Look:
    """One look at a host's Pythons for several cases: each Python is asked once, for the packages of all cases."""

    def __init__(self, packages: Iterable[str]) -> None:
        self.packages = frozenset(packages)
        self._answers: dict[str, dict[str, Any] | RuntimeSetupError] = {}
        self._lock = threading.Lock()

    def answer(self, question: Mapping[str, Any], ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the answer to a question, or raise its error; ask only if nobody has."""
        key = json.dumps(question)
        with self._lock:
            if key not in self._answers:
                try:
                    self._answers[key] = ask()
                except RuntimeSetupError as error:
                    self._answers[key] = error
        answer = self._answers[key]
        if isinstance(answer, RuntimeSetupError):
            raise answer
        return answer


@dataclass(frozen=True)
class RuntimeRequest:
    """The requirements on the Python of a case's ranks."""

    framework: str
    requirements: tuple[Path, ...] = ()  # requirements files of pip; a missing file is an error
    overrides: tuple[Path, ...] = ()  # files of requirements that replace what packages require
    of_framework: tuple[Path, ...] = ()  # those of all suites of the framework
    python: str | None = None  # the interpreter to use, or to build the environment with
    # The package index to use, before any other setting; its address may contain a password.
    pip_source: str | None = field(default=None, repr=False)
    wheels: str | None = None  # folder of wheels to use instead of any index
    # uv settings for the build; without them if uv finds no packages with them.
    uv_settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    run: str = ""  # the same for all processes of a run, so that a failed build is not repeated
    timeout_s: float = BUILD_S
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # variables for every rank
    environment_file: Path | None = None  # sourced once with these variables; every rank gets its exports
    image: Image = Image()  # only for runtimes that use images
    extension: Path | None = None  # vendors/<vendor>/<model>-<framework>/csrc, built for the ranks
    shared: Look | None = field(default=None, compare=False)  # of a look for several cases

    @property
    def extension_name(self) -> str:
        """The extension's folder, for messages."""
        return "/".join(self.extension.parts[-4:]) if self.extension else ""


@dataclass(frozen=True)
class EngineRequirements:
    """The requirements on a host that runs containers, for preflight."""

    image: str
    image_is_ours: bool = False  # built from the vendor's folder if missing; else pulled
    socket: str | None = None  # of Docker's engine; None for Apptainer


class ContainerSpec(Protocol):
    """The parameters of a container that does not exist yet; its image is on the host."""

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
        """Create the container, do not start it. Return what the agent needs: ``{"socket": ..., "id": ...}``.

        Of a container that a program starts, return ``{"argv": [...], "env": {...}}``.

        Its own program runs in ``log_dir`` and sees the ``read_only`` folders of the host at the same paths.
        ``only_leased`` in the result says whether the container sees only ``devices``.
        """

    def run(self, host: Host, within_s: float, argv: Sequence[str]) -> Completed:
        """Run a program in a container of its own, which is removed."""


@dataclass(frozen=True)
class Interpreter:
    """A prepared Python on a host, and the environment variables of its processes."""

    python: str
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    label: str = ""
    details: Mapping[str, str] = field(default_factory=dict)
    container: ContainerSpec | None = None
    path: tuple[str, ...] = ()
    """Folders of packages that precede the interpreter's own."""
    other_versions: tuple[Deviation, ...] = ()
    """The packages with another version than the suites require."""

    def warnings(self) -> list[str]:
        """Return a sentence for each package with another version than the suites require."""
        return [
            f"{self.python} has {one.key} {one.value}; the suites require {one.key}{one.reference}"
            for one in self.other_versions
        ]


class Runtime(Protocol):
    """Interface of a runtime; the defaults apply to runtimes without containers."""

    takes_python: bool = False
    """Whether the setting ``python`` selects its interpreter, which needs only the packages of the selected suites.

    Otherwise the suites of a framework share one Python, which has the packages of all of them.
    """
    uses_images: bool = False
    """Whether ranks run in containers; the image has the Python and the case's extension."""
    builds_images: bool = False
    """Whether the case's extension and packages are added to the image."""
    needs: str = ""
    """The requirement on every host besides a Python."""

    def prepare(self, host: Host, request: RuntimeRequest, progress: OnProgress, code: Code) -> Interpreter:
        """Prepare the Python on a host; called for several hosts at once from threads. ``code`` runs on the host."""
        ...

    def look(self, host: Host, request: RuntimeRequest, code: Code) -> Interpreter | None:  # noqa: ARG002
        """Return the Python if it is ready, else None; change nothing on the host."""
        return None

    def to_build(self, host: Host, request: RuntimeRequest, code: Code) -> str:  # noqa: ARG002
        """Return in a few words what a build of the Python on the host would fetch; empty if nothing is built."""
        return ""

    def is_unchanged(self, host: Host, interpreter: Interpreter, code: Code) -> bool:  # noqa: ARG002
        """Return False if the prepared Python must be prepared again, because its files have changed."""
        return True

    def check(self, request: RuntimeRequest) -> list[str]:
        """Return the problems of a case that are known without a host."""
        return unbuildable(request)

    def notes(self, request: RuntimeRequest, case: str) -> list[str]:  # noqa: ARG002
        """Return notes on a case that may surprise users, one sentence each."""
        return []

    def image(self, request: RuntimeRequest) -> str:  # noqa: ARG002
        """Return the description of the image for ``--plan``; empty without an image."""
        return ""

    def sees_all_devices(self, request: RuntimeRequest) -> bool:  # noqa: ARG002
        """Return True if processes see all devices of the host unless a variable hides them."""
        return True

    def engine(self, request: RuntimeRequest) -> EngineRequirements | None:  # noqa: ARG002
        """Return the requirements on container engines, None without; RuntimeSetupError if no image is known."""
        return None


@cache
def runtimes() -> dict[str, Runtime]:
    """Return all runtimes by name."""
    modules = {
        module.name: importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)
    }
    return {name: module.RUNTIME for name, module in sorted(modules.items()) if hasattr(module, "RUNTIME")}


def is_buildable(extension: Path) -> bool:
    """Return True if pip can build a case's ``csrc/``."""
    return any((extension / name).is_file() for name in BUILT_BY)


def unbuildable(request: RuntimeRequest) -> list[str]:
    """Return a problem if the case has an extension that pip cannot build."""
    if request.extension is None or is_buildable(request.extension):
        return []
    name = request.extension_name
    return [f"{name} has neither setup.py nor pyproject.toml: it cannot be built; add one"]
