"""The runtime apptainer: ranks in a container of Apptainer, or of Singularity, which needs no daemon and no root.

This module finds the image on a host, and has the command that the agent starts the ranks with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_flagperf import redaction
from pytest_flagperf.hosts import Completed, Host
from pytest_flagperf.hosts.deploy import Code
from pytest_flagperf.hosts.replies import PATH, TEXT, Maybe, Shape

from . import (
    EngineRequirements,
    Interpreter,
    OnProgress,
    Runtime,
    RuntimeRequest,
    RuntimeSetupError,
    program_containers,
)
from .container_options import ContainerProgram, TranslatedOptions
from .host_module import ask
from .image_facts import RUN_S, check_complete, read_image_facts
from .program_containers import ProgramContainerSpec

_MODULE = "flagperf_driver.node.apptainer"
_ANSWER: Shape = {"program": PATH, "version": TEXT, "image": PATH, "digest": Maybe(TEXT)}
_ANSWER_S = 60.0
_FLAGS = (
    "--nv", "--nvccli", "--rocm", "--cleanenv", "-e", "--contain", "-c", "--no-home", "--userns", "-u", "--fakeroot",
    "-f", "--writable-tmpfs", "--no-privs", "--keep-privs", "--unsquash", "--underlay", "--no-eval", "--compat",
)  # fmt: skip
_VALUED = (
    "--bind", "-B", "--overlay", "-o", "--scratch", "-S", "--home", "-H", "--no-mount", "--security", "--add-caps",
    "--drop-caps", "--nvccli-args", "--fusemount",
)  # fmt: skip
_MONITORED = "the monitors must see the ranks' processes, so the container must use the host's process numbers"
_REFUSED = {
    **dict.fromkeys(("--containall", "-C", "-p"), _MONITORED),
    **dict.fromkeys(("--pwd", "--cwd", "-W"), "ranks run in their log folder"),
    "--env-file": "use --env NAME=VALUE",
}
_PROGRAM = ContainerProgram("apptainer exec", _FLAGS, _VALUED, _REFUSED)


def source_of(image: str) -> str:
    """Return the path or address of an image; a name without a scheme is one of Docker's registry."""
    return image if redaction.is_image_file(image) else f"docker://{image}"


class _Apptainer(Runtime):
    uses_images = True
    needs = "Apptainer or Singularity"

    def prepare(self, host: Host, request: RuntimeRequest, progress: OnProgress, code: Code) -> Interpreter:
        """Prepare the image on a host and read its facts; return its Python with the parameters of its container."""
        spec = request.image
        options, source = program_containers.options_of(spec, _PROGRAM), source_of(spec.image or "")
        order, timeout_s = {"image": source, "pull_s": request.timeout_s}, request.timeout_s + _ANSWER_S
        found = ask(host, code, _MODULE, order, timeout_s=timeout_s, shape=_ANSWER, progress=progress)
        container = ApptainerSpec(found["program"], found["image"], options)

        def run(argv: Sequence[str], stdin: bytes, env: Mapping[str, str]) -> Completed:
            return container.run(host, RUN_S, argv, stdin, env)

        public = redaction.image(source)
        inputs = [*found.values(), container.command("/"), dict(options.env)] if found["digest"] else None  # a folder
        facts = read_image_facts(host, public, inputs, run, request, progress)
        check_complete(host, public, request, facts["libraries"])
        details = {
            **facts["libraries"],
            "python": facts["python"],
            "image": public,
            **({"digest": found["digest"], "image_id": found["digest"]} if found["digest"] else {}),
            Path(found["program"]).name: found["version"].rpartition(" ")[2],
        }
        env = {**container.env, **facts["env"]}
        return Interpreter(facts["executable"], env, f"apptainer: {public}", details, container)

    def check(self, request: RuntimeRequest) -> list[str]:
        image = request.image
        found = program_containers.problems(image, _PROGRAM)
        if image.image is None:
            dockerfile = image.expected if image.folder else None
            reason = (
                f"--runtime=apptainer cannot build {dockerfile}: build it with docker and push it"
                if dockerfile
                else f"--runtime=apptainer needs an image, and {image.expected.split('/images/')[0]} names none"
            )
            found.append(f"{reason}; pass --image=docker://NAME, or the path of an image file: --image=/PATH/FILE.sif")
        return found

    def notes(self, request: RuntimeRequest, case: str) -> list[str]:
        return program_containers.notes(request, case, _PROGRAM)

    def image(self, request: RuntimeRequest) -> str:
        image = request.image
        return f"{source_of(image.image)}, of {image.image_source}" if image.image else ""

    def engine(self, request: RuntimeRequest) -> EngineRequirements:
        image = request.image
        if image.image is None:
            raise RuntimeSetupError("; ".join(self.check(request)))
        return EngineRequirements(source_of(image.image))


RUNTIME = _Apptainer()


@dataclass(frozen=True)
class ApptainerSpec(ProgramContainerSpec):
    program: str
    image: str
    options: TranslatedOptions

    def command(self, folder: str, mounts: Sequence[str] = ()) -> list[str]:
        options = self.options
        binds = [f"--bind={mount}" for mount in (*self.given_mounts, *mounts)]
        gpus = ["--nv"] if options.gpus and "--nvccli" not in options.own and "--nv" not in options.own else []
        return [self.program, "exec", f"--pwd={folder}", *gpus, *options.own, *binds, self.image]
