"""What the runtimes share whose containers end with a program that the agent starts: apptainer and pyxis."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pytest_flagperf.hosts import Completed, Host

from . import Image, RuntimeRequest
from .container_options import ContainerProgram, TranslatedOptions, translate
from .docker.run_options import OptionsError


class ProgramContainerSpec(ABC):
    """The parameters of a container, which the agent starts."""

    options: TranslatedOptions

    @abstractmethod
    def command(self, folder: str, mounts: Sequence[str] = ()) -> list[str]:
        """Return the command in front of a program that runs in ``folder``; a mount is ``SOURCE:TARGET[:ro]``."""

    @property
    def env(self) -> dict[str, str]:
        """The variables of the container's processes."""
        # Packages in the user's home must not replace those of the image.
        return {**self.options.env, "PYTHONNOUSERSITE": "1"}

    @property
    def given_mounts(self) -> list[str]:
        """The mounts of the options."""
        return [f"{each.source}:{each.target}{':ro' if each.read_only else ''}" for each in self.options.mounts]

    def create(
        self,
        host: Host,  # noqa: ARG002 - as in the protocol
        *,
        argv: Sequence[str],
        log_dir: str,
        read_only: Sequence[str],
        devices: Sequence[int],  # noqa: ARG002
        labels: Mapping[str, str],  # noqa: ARG002
    ) -> Mapping[str, Any]:
        mounts = [f"{log_dir}:{log_dir}", *(f"{folder}:{folder}:ro" for folder in read_only)]
        return {"argv": [*self.command(log_dir, mounts), *argv], "env": self.env, "only_leased": False}

    def run(
        self, host: Host, within_s: float, argv: Sequence[str], stdin: bytes = b"", env: Mapping[str, str] | None = None
    ) -> Completed:
        return host.run([*self.command("/"), *argv], timeout_s=within_s, stdin=stdin, env={**self.env, **(env or {})})


def options_of(image: Image, program: ContainerProgram) -> TranslatedOptions:
    """Return the options of an image for a program; OptionsError with all problems."""
    return translate(image.options, image.options_source, program)


def problems(image: Image, program: ContainerProgram) -> list[str]:
    """Return the problems of an image that every such runtime has, and that are known without a host."""
    found = [image.unreadable] if image.unreadable else []
    try:
        options_of(image, program)
    except OptionsError as error:
        found += error.problems
    return found


def notes(request: RuntimeRequest, case: str, program: ContainerProgram) -> list[str]:
    """Return what a user may not expect."""
    image = request.image
    lines: list[str] = []
    with suppress(OptionsError):  # reported by problems()
        lines += options_of(image, program).notes
    if request.extension is not None:
        lines.append(f"{case}: {request.extension_name} is built only into images of Docker; the image must have it")
    return lines
