"""The runtime docker: ranks in containers of the Docker engine on each host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flagperf_driver.node import docker_engine
from pytest_flagperf import redaction
from pytest_flagperf.packages import PackageMissing, need
from pytest_flagperf.runtime import EngineRequirements, Image, Runtime, RuntimeRequest, unbuildable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_flagperf.hosts import Host
    from pytest_flagperf.hosts.deploy import Code
    from pytest_flagperf.runtime import Interpreter, OnProgress


class _Docker(Runtime):
    """Imports its modules when they are used, so that other runs start faster."""

    uses_images = True
    builds_images = True
    needs = "Docker"

    def prepare(self, host: Host, request: RuntimeRequest, progress: OnProgress, code: Code) -> Interpreter:  # noqa: ARG002
        """Pull or build the image of the case on a host; return its Python."""
        from . import containers

        return containers.prepare(host, request, progress)

    def look(self, host: Host, request: RuntimeRequest, code: Code) -> None:  # noqa: ARG002
        """Load what prepare() needs. Requests to the engine would make the host busy, whose load is being measured."""
        import docker  # noqa: F401

        from . import containers  # noqa: F401

    def check(self, request: RuntimeRequest) -> list[str]:
        try:
            need("docker")
        except PackageMissing as error:
            return error.problems
        return [*unbuildable(request), *_invalid_options(request.image), *_missing_image(request.image)]

    def image(self, request: RuntimeRequest) -> str:
        image = request.image
        return f"{image.image}, of {image.image_source}" if image.image else f"built from {image.image_source}"

    def sees_all_devices(self, request: RuntimeRequest) -> bool:
        from . import run_options

        image = request.image
        return not run_options.parse(image.options, image.options_source).only_leased

    def engine(self, request: RuntimeRequest) -> EngineRequirements:
        from . import images

        return EngineRequirements(images.image_name(request), request.image.image is None, docker_engine.SOCKET)


RUNTIME = _Docker()


def _invalid_options(image: Image) -> Iterator[str]:
    from . import run_options

    if image.unreadable:
        yield image.unreadable
    try:
        run_options.parse(image.options, image.options_source)
    except run_options.OptionsError as error:
        yield from error.problems


def _missing_image(image: Image) -> Iterator[str]:
    if image.image is not None and not redaction.is_image(image.image):
        shown = redaction.image(image.image)
        expected = "expected a name for docker pull, as in maker/pytorch:1"
        yield f"{image.image_source}: Docker has no image {shown!r}; {expected}"
    if image.image is None and image.folder is None:
        vendor = Path(image.expected).parents[2]
        yield (
            f"no container image: {image.expected} not found; write it, or set an image with --image or in [images] of"
            f" {vendor}/vendor.toml"
        )
