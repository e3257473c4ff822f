"""Translate options of ``docker run`` for other programs; options of the program itself pass unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_flagperf import docker_words
from pytest_flagperf.problems import near

from .docker import run_options as docker
from .docker.run_options import OptionsError

# Docker's options without an equivalent, whose absence can change what a case measures.
_NOTED = (
    "--memory", "--memory-swap", "--cpus", "--pids-limit", "--user", "--add-host", "--tmpfs", "--entrypoint",
    "--shm-size",
)  # fmt: skip


@dataclass(frozen=True)
class ContainerProgram:
    """A program that starts containers: its options without and with a value, and the reasons against others."""

    name: str
    flags: Sequence[str]
    valued: Sequence[str]
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Mount:
    """A folder of the host in the container."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True)
class TranslatedOptions:
    """The options for one program."""

    own: tuple[str, ...]  # words of the program
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    gpus: bool = False
    notes: tuple[str, ...] = ()


def translate(words: Sequence[str], source: str, program: ContainerProgram) -> TranslatedOptions:
    """Split the options into those of the program and Docker's; OptionsError with all problems."""
    own: list[str] = []
    dockers: list[str] = []
    problems: list[str] = []
    for name, value in docker_words.options(words):
        problem: str | None = None
        if name in program.refused:
            problem = program.refused[name]
        elif name in program.flags:
            own.append(name)
            problem = None if value in (None, "true") else "expected no value"
        elif name in program.valued:
            own += [name, value or ""] if not name.startswith("--") else [f"{name}={value}"]
            problem = None if value else "the value is missing"
        elif name in docker_words.ARGUMENTS or not name:
            dockers.append(f"{name}={value}" if name and value is not None else name or str(value))
        else:
            problem = _unknown(name, program)
        if problem:
            problems.append(f"{source}: {docker_words.name_shown(name)}: {problem}")
    try:
        parsed = docker.parse(dockers, source)
    except OptionsError as error:
        raise OptionsError([*problems, *error.problems]) from error
    mounts = parsed.arguments.get("mounts", ())
    problems += [f"{source}: --volume: {problem}" for mount in mounts if (problem := _no_mount(mount, program))]
    if problems:
        raise OptionsError(problems)
    unused = [name for name in _NOTED if docker_words.ARGUMENTS[name] in parsed.arguments]
    return TranslatedOptions(
        tuple(own),
        tuple(Mount(mount["Source"], mount["Target"], bool(mount["ReadOnly"])) for mount in mounts),
        dict(parsed.arguments.get("environment", {})),
        parsed.gpus,
        (f"{source}: {', '.join(unused)}: no effect with {program.name}",) if unused else (),
    )


def _unknown(name: str, program: ContainerProgram) -> str:
    allowed = [*program.flags, *program.valued, *docker_words.ARGUMENTS]
    hint = near(name, allowed) or f"; allowed are {', '.join(allowed)}"
    return f"an option neither of {program.name} nor of docker run{hint}"


def _no_mount(mount: Mapping[str, Any], program: ContainerProgram) -> str | None:
    """Return why a mount of Docker cannot be used; None if it can."""
    if mount["Type"] != "bind":
        return f"{program.name} has no named volumes; expected the path of a folder"
    if any(character in mount["Source"] + mount["Target"] for character in ",:"):
        return "a path with a comma or a colon cannot be mounted"
    return None
