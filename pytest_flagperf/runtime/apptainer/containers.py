"""Containers of Apptainer: the image on a host, and the command that the agent starts the ranks with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_flagperf import redaction
from pytest_flagperf.hosts import Completed, Host, HostError, HostLost
from pytest_flagperf.hosts.deploy import Code, call_module
from pytest_flagperf.hosts.replies import PATH, TEXT, Maybe, Shape
from pytest_flagperf.runtime import Image, Interpreter, OnProgress, RuntimeRequest, RuntimeSetupError
from pytest_flagperf.runtime.container_options import ContainerOptionsError, Program, Translated, translate
from pytest_flagperf.runtime.image_facts import RUN_S, check_complete, read_image_facts

_MODULE = "flagperf_driver.node.apptainer"
_ANSWER: Mapping[str, Shape] = {"program": PATH, "version": TEXT, "image": PATH, "digest": Maybe(TEXT)}
_ANSWER_S = 60.0
# Packages in the user's home, which is mounted, must not replace those of the image.
ENV = {"PYTHONNOUSERSITE": "1"}
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
_PROGRAM = Program("apptainer exec", _FLAGS, _VALUED, _REFUSED)


def source_of(image: str) -> str:
    """Return the path or address of an image; a name without a scheme is one of Docker's registry."""
    return image if redaction.is_image_file(image) else f"docker://{image}"


def problems(image: Image) -> list[str]:
    """Return the problems that are known without a host."""
    found = [image.unreadable] if image.unreadable else []
    try:
        _options(image)
    except ContainerOptionsError as error:
        found += error.problems
    if image.image is None:
        dockerfile = image.expected if image.folder else None
        reason = (
            f"--runtime=apptainer cannot build {dockerfile}: build it with docker and push it"
            if dockerfile
            else f"--runtime=apptainer needs an image, and {image.expected.split('/images/')[0]} names none"
        )
        found.append(f"{reason}; pass --image=docker://NAME, or the path of an image file: --image=/PATH/FILE.sif")
    return found


def notes(request: RuntimeRequest, case: str) -> list[str]:
    """Return what a user may not expect."""
    image = request.image or Image()
    lines = [*image.unused]
    with suppress(ContainerOptionsError):  # reported by problems()
        lines += _options(image).notes
    if image.shm_size:
        lines.append(f"{image.shm_size_source}: no effect with apptainer, which uses the host's /dev/shm")
    if request.extension is not None:
        lines.append(f"{case}: {request.extension_name} is built only into images of Docker; the image must have it")
    return lines


def prepare(host: Host, request: RuntimeRequest, progress: OnProgress, code: Code) -> Interpreter:
    """Prepare the image on a host and read its facts; return its Python with the parameters of its container."""
    spec = request.image or Image()
    options, source = _options(spec), source_of(spec.image or "")
    found = _ask(host, code, {"image": source, "pull_s": request.timeout_s}, request.timeout_s + _ANSWER_S, progress)
    container = _Container(found["program"], found["image"], options)

    def run(argv: Sequence[str], stdin: bytes, env: Mapping[str, str]) -> Completed:
        command = [*container.command("/", ()), *argv]
        return host.run(command, timeout_s=RUN_S, stdin=stdin, env={**options.env, **ENV, **env})

    public = redaction.image(source)
    inputs = [*found.values(), container.command("/", ()), dict(options.env)] if found["digest"] else None  # a folder
    facts = read_image_facts(host, public, inputs, run, request, progress)
    check_complete(host, public, request, facts["libraries"])
    details = {
        **facts["libraries"],
        "python": facts["python"],
        "image": public,
        **({"digest": found["digest"], "image_id": found["digest"]} if found["digest"] else {}),
        Path(found["program"]).name: found["version"].rpartition(" ")[2],
    }
    env = {**options.env, **ENV, **facts["env"]}
    return Interpreter(facts["executable"], env, f"apptainer: {public}", details, container)


@dataclass(frozen=True)
class _Container:
    """The parameters of a container, which the agent starts."""

    program: str
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
        binds = [f"--bind={log_dir}:{log_dir}", *(f"--bind={folder}:{folder}:ro" for folder in read_only)]
        return {
            "argv": [*self.command(log_dir, binds), *argv],
            "env": {**self.options.env, **ENV},
            "only_leased": False,
        }

    def command(self, folder: str, binds: Sequence[str]) -> list[str]:
        """Return the command in front of a program that runs in ``folder``."""
        options = self.options
        mounts = [f"--bind={each.source}:{each.target}{':ro' if each.read_only else ''}" for each in options.mounts]
        gpus = ["--nv"] if options.gpus and "--nvccli" not in options.own and "--nv" not in options.own else []
        return [self.program, "exec", f"--pwd={folder}", *gpus, *options.own, *mounts, *binds, self.image]


def _options(image: Image) -> Translated:
    return translate(image.options, image.options_source, _PROGRAM)


def _ask(host: Host, code: Code, request: dict[str, Any], timeout_s: float, progress: OnProgress) -> dict[str, Any]:
    def report(answer: Any) -> None:
        if answer["type"] == "progress":
            progress(answer["line"])

    try:
        return call_module(host, code, _MODULE, request, timeout_s=timeout_s, shape=_ANSWER, on_message=report)
    except HostLost:
        raise
    except HostError as error:
        raise RuntimeSetupError(str(error)) from error
