"""The runtime pyxis: ranks in a container that Slurm starts, as sites with the plug-in pyxis offer it.

The agent stays outside of the container. On each node it starts one more step of the job, ``srun --container-image``,
with a second agent that supervises the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pytest_flagperf import redaction
from pytest_flagperf.hosts import Completed, Host
from pytest_flagperf.hosts.deploy import Code

from . import Image, Interpreter, OnProgress, Runtime, RuntimeRequest, RuntimeSetupError
from .container_options import ContainerOptionsError, Program, Translated, translate
from .image_facts import check_complete, read_image_facts

OPTION = "--container-image"
_PROGRAM = Program(
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
# Packages in the user's home must not replace those of the image.
_ENV = {"PYTHONNOUSERSITE": "1"}


class _Pyxis(Runtime):
    uses_images = True
    needs = "Slurm with pyxis"

    def prepare(self, host: Host, request: RuntimeRequest, progress: OnProgress, code: Code) -> Interpreter:  # noqa: ARG002
        """Read the facts of the image on a node; return its Python with the parameters of its container."""
        from pytest_flagperf.hosts.slurm.host import SlurmHost  # only runs with Slurm need it

        if not isinstance(host, SlurmHost):
            raise RuntimeSetupError(
                f"{host.name}: --runtime=pyxis needs --cluster=slurm; on other hosts use --runtime=apptainer or docker"
            )
        spec = request.image or Image()
        options, image = _options(spec), image_of(spec.image or "")
        _require_pyxis(host)
        container = _Container(tuple(host.step()), image, options)
        public = redaction.image(spec.image or "")

        def run(argv: Sequence[str], stdin: bytes, env: Mapping[str, str]) -> Completed:
            done = host.run(
                [*container.command("/", ()), *argv],
                timeout_s=request.timeout_s,
                stdin=stdin,
                env={**options.env, **_ENV, **env},
            )
            if done.code != 0 and (reasons := _reasons(done.err)):
                raise RuntimeSetupError(
                    f"{host.name}: Slurm cannot start a container of {public}: {reasons}; check --image"
                )
            return done

        progress(f"pulling {public}, unless Slurm has it")
        facts = read_image_facts(host, public, None, run, request, progress)
        check_complete(host, public, request, facts["libraries"])
        details = {**facts["libraries"], "python": facts["python"], "image": public}
        env = {**options.env, **_ENV, **facts["env"]}
        return Interpreter(facts["executable"], env, f"pyxis: {public}", details, container)

    def check(self, request: RuntimeRequest) -> list[str]:
        image = request.image or Image()
        problems = [image.unreadable] if image.unreadable else []
        try:
            _options(image)
        except ContainerOptionsError as error:
            problems += error.problems
        if image.image is None:
            problems.append(
                f"--runtime=pyxis needs an image, and cannot build {image.expected}; pass --image=NAME of a registry's"
                " image, or --image=/PATH/FILE.sqsh"
            )
        return problems

    def notes(self, request: RuntimeRequest, case: str) -> list[str]:
        image = request.image or Image()
        lines = [*image.unused]
        with suppress(ContainerOptionsError):  # reported by check()
            lines += _options(image).notes
        if image.shm_size:
            lines.append(f"{image.shm_size_source}: no effect with pyxis")
        if request.extension is not None:
            lines.append(
                f"{case}: {request.extension_name} is built only into images of Docker; the image must have it"
            )
        return lines

    def image(self, request: RuntimeRequest) -> str:
        image = request.image or Image()
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
class _Container:
    """The parameters of a container, whose step the agent starts."""

    srun: tuple[str, ...]
    image: str
    options: Translated

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
        return {
            "argv": [*self.command(log_dir, mounts), *argv],
            "env": {**self.options.env, **_ENV},
            "only_leased": False,
        }

    def command(self, folder: str, mounts: Sequence[str]) -> list[str]:
        """Return the command in front of a program that runs in ``folder``."""
        given = [f"{each.source}:{each.target}{':ro' if each.read_only else ''}" for each in self.options.mounts]
        own = [word for word in self.options.own if not word.startswith("--container-mounts=")]
        given += [word.partition("=")[2] for word in self.options.own if word.startswith("--container-mounts=")]
        return [
            *self.srun,
            f"{OPTION}={self.image}",
            f"--container-workdir={folder}",
            *([f"--container-mounts={','.join([*given, *mounts])}"] if given or mounts else []),
            *own,
        ]


def _options(image: Image) -> Translated:
    return translate(image.options, image.options_source, _PROGRAM)


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
