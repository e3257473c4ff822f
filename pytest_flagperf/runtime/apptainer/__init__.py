"""The runtime apptainer: ranks in a container of Apptainer, or of Singularity, which needs no daemon and no root."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_flagperf.runtime import EngineRequirements, Image, Runtime, RuntimeRequest, RuntimeSetupError

if TYPE_CHECKING:
    from pytest_flagperf.hosts import Host
    from pytest_flagperf.hosts.deploy import Code
    from pytest_flagperf.runtime import Interpreter, OnProgress


class _Apptainer(Runtime):
    """Imports its modules when they are used, so that other runs start faster."""

    uses_images = True
    needs = "Apptainer or Singularity"

    def prepare(self, host: Host, request: RuntimeRequest, progress: OnProgress, code: Code) -> Interpreter:
        """Find or pull the image of the case on a host; return its Python."""
        from . import containers

        return containers.prepare(host, request, progress, code)

    def check(self, request: RuntimeRequest) -> list[str]:
        from . import containers

        return containers.problems(request.image or Image())

    def notes(self, request: RuntimeRequest, case: str) -> list[str]:
        from . import containers

        return containers.notes(request, case)

    def image(self, request: RuntimeRequest) -> str:
        from . import containers

        image = request.image or Image()
        return f"{containers.source_of(image.image)}, of {image.image_source}" if image.image else ""

    def engine(self, request: RuntimeRequest) -> EngineRequirements:
        from . import containers

        image = request.image or Image()
        if image.image is None:
            raise RuntimeSetupError("; ".join(containers.problems(image)))
        return EngineRequirements(containers.source_of(image.image))


RUNTIME = _Apptainer()
