"""The runtime pyxis: ranks in a container that Slurm starts, as sites with the plug-in pyxis offer it.

The agent stays outside of the container. On each node it starts one more step of the job, ``srun --container-image``,
with a small program that starts the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pytest_flagperf import redaction
from pytest_flagperf.hosts import Completed, Host
from pytest_flagperf.hosts.deploy import Code

from . import Interpreter, OnProgress, Runtime, RuntimeRequest, RuntimeSetupError, program_containers
from .container_options import ContainerProgram, TranslatedOptions
from .image_facts import check_complete, read_image_facts
from .program_containers import ProgramContainerSpec

OPTION = "--container-image"
_PROGRAM = ContainerProgram(
    "srun with pyxis",
    flags=(
        "--container-mount-home", "--no-container-mount-home", "--container-remap-root", "--no-container-remap-root",
        "--container-entrypoint", "--no-container-entrypoint", "--container-writable", "--container-readonly",
    ),
    valued=("--container-mounts", "--container-env", "--container-save"),
    refused={
        OPTION: "set the image with --image",
        "--container-workdir": "ranks run in their log folder",
        "--container-name": "each round has a container of its own",
    },
)  # fmt: skip
_HELP_S = 30.0
_MOUNTS = "--container-mounts="


@runtime_checkable
class HostOfJob(Protocol):
    """A host of a Slurm job."""

    def step(self) -> list[str]:
        """Return the command in front of a program that runs on this host beside all other steps of the job."""


class _Pyxis(Runtime):
    uses_images = True
    needs = "Slurm with pyxis"

    def prepare(self, host: Host, request: RuntimeRequest, progress: OnProgress, code: Code) -> Interpreter:  # noqa: ARG002
        """Read the facts of the image on a node; return its Python with the parameters of its container."""
        if not isinstance(host, HostOfJob):
            raise RuntimeSetupError(
                f"{host.name}: --runtime=pyxis needs --cluster=slurm; on other hosts use --runtime=apptainer or docker"
            )
        spec = request.image
        options, image = program_containers.options_of(spec, _PROGRAM), image_of(spec.image or "")
        _require_pyxis(host)
        container = PyxisSpec(tuple(host.step()), image, options)
        public = redaction.image(spec.image or "")

        def run(argv: Sequence[str], stdin: bytes, env: Mapping[str, str]) -> Completed:
            done = container.run(host, request.timeout_s, argv, stdin, env)
            if done.code != 0 and (reasons := _reasons(done.err)):
                raise RuntimeSetupError(
                    f"{host.name}: Slurm cannot start a container of {public}: {reasons}; check --image"
                )
            return done

        progress(f"pulling {public}, unless Slurm has it")
        facts = read_image_facts(host, public, None, run, request, progress)
        check_complete(host, public, request, facts["libraries"])
        details = {**facts["libraries"], "python": facts["python"], "image": public}
        env = {**container.env, **facts["env"]}
        return Interpreter(facts["executable"], env, f"pyxis: {public}", details, container)

    def check(self, request: RuntimeRequest) -> list[str]:
        image = request.image
        problems = program_containers.problems(image, _PROGRAM)
        if image.image is None:
            problems.append(
                f"--runtime=pyxis needs an image, and cannot build {image.expected}; pass --image=NAME of a registry's"
                " image, or --image=/PATH/FILE.sqsh"
            )
        return problems

    def notes(self, request: RuntimeRequest, case: str) -> list[str]:
        return program_containers.notes(request, case, _PROGRAM)

    def image(self, request: RuntimeRequest) -> str:
        image = request.image
        return f"{image_of(image.image)}, of {image.image_source}" if image.image else ""


RUNTIME = _Pyxis()


def image_of(image: str) -> str:
    """Return the image as pyxis takes it: REGISTRY#NAME:TAG, or the path of a file."""
    name = image.removeprefix("docker://")
    registry, slash, rest = name.partition("/")
    if image.startswith("/") or "#" in name or not slash:
        return name
    is_registry = "." in registry or ":" in registry or registry == "localhost"
    return f"{registry}#{rest}" if is_registry else name


@dataclass(frozen=True)
class PyxisSpec(ProgramContainerSpec):
    srun: tuple[str, ...]
    image: str
    options: TranslatedOptions

    def command(self, folder: str, mounts: Sequence[str] = ()) -> list[str]:
        own = [word for word in self.options.own if not word.startswith(_MOUNTS)]
        given = [word.removeprefix(_MOUNTS) for word in self.options.own if word.startswith(_MOUNTS)]
        all_mounts = [*self.given_mounts, *given, *mounts]
        return [
            *self.srun,
            f"{OPTION}={self.image}",
            f"--container-workdir={folder}",
            *([f"{_MOUNTS}{','.join(all_mounts)}"] if all_mounts else []),
            *own,
        ]


def _reasons(err: str) -> str:
    """Return the last lines that pyxis itself has written."""
    lines = [line.partition("pyxis: ")[2].strip() for line in err.splitlines() if "pyxis: " in line]
    return "; ".join(dict.fromkeys(lines[-3:]))


def _require_pyxis(host: Host) -> None:
    """Raise RuntimeSetupError if Slurm on the node does not have the plug-in, or srun cannot be started there."""
    done = host.run(["srun", "--help"], timeout_s=_HELP_S)
    if done.code != 0:
        last = (done.err.strip().splitlines() or [f"exit code {done.code}"])[-1]
        raise RuntimeSetupError(
            f"{host.name}: --runtime=pyxis starts srun on the nodes, where it does not work: {last}"
        )
    if OPTION not in done.out:
        raise RuntimeSetupError(
            f"{host.name}: Slurm does not have the plug-in pyxis (srun --help has no {OPTION}); use"
            " --runtime=apptainer or venv"
        )
