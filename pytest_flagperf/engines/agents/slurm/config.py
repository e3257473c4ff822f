"""How jobs are requested: the table [slurm] of the settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pytest_flagperf.problems import Problems, kind, near, shown

NAME = "slurm"
"""The value of --cluster that selects Slurm."""
_WORD = re.compile(r"[\w.,+@:/-]+")
_TIME = re.compile(r"\d+(:\d{1,2}){0,2}|\d+-\d{1,2}(:\d{1,2}){0,2}")
_PYTHON = re.compile(r"[\w./+-]+")
_GRES = re.compile(r"[\w-]+(:[\w.-]+)?")
# Options that the harness sets, or that change what its commands print or when they return.
_RESERVED = (
    "--nodes", "-N", "--ntasks", "-n", "--ntasks-per-node", "--time", "-t", "--partition", "-p", "--account", "-A",
    "--job-name", "-J", "--parsable", "--wrap", "--array", "-a", "--test-only", "--wait", "-W", "--output", "-o",
    "--error", "-e", "--input", "-i", "--help", "-h", "--version", "-V", "--usage", "--quiet", "-Q", "--chdir", "-D",
    "--export",
)  # fmt: skip


class SlurmConfigError(Problems):
    """An invalid table [slurm]."""


@dataclass(frozen=True)
class SlurmConfig:
    """The table [slurm]; None leaves a choice to Slurm. ``source`` is the file."""

    partition: str | None = None
    """The partition of the jobs."""
    account: str | None = None
    """The account of the jobs."""
    time: str | None = None  # time limit of a job, as sbatch takes it
    gres: str = "gpu"  # the name, or name:type, of the accelerators in Slurm
    options: tuple[str, ...] = ()  # further options of sbatch
    spares: int = 0
    """Nodes of a job beyond those of its case, which then survives the loss of a node (``--no-kill``)."""
    python: str = "python3"
    """The Python >= 3.8 that runs the agent on the nodes."""
    source: str = "--cluster=slurm"


_EXPECTED = {
    "partition": (_WORD, "the name of a partition, or several with commas"),
    "account": (_WORD, "the name of an account"),
    "time": (_TIME, 'a time limit as for sbatch, such as "30", "4:00:00" or "1-12:00:00"'),
    "gres": (_GRES, 'the name of a generic resource, such as "gpu" or "gpu:a100"'),
    "python": (_PYTHON, "the name or path of a program on the nodes, of letters, digits, / . _ + and -"),
}


def read_slurm(table: Mapping[str, Any], file: Path) -> SlurmConfig:
    """Read the table of a settings file; SlurmConfigError with all problems."""
    known = [field.name for field in fields(SlurmConfig) if field.name != "source"]
    problems: list[str] = []
    for name, value in table.items():
        if name not in known:
            problems.append(f"{file}: unknown setting slurm.{name}{near(name, known)}; allowed are {', '.join(known)}")
        elif problem := _problem(name, value):
            problems.append(f"{file}: slurm.{name} = {shown(value)}: {problem}")
    if problems:
        raise SlurmConfigError(problems)
    values: dict[str, Any] = {name: tuple(value) if name == "options" else value for name, value in table.items()}
    return SlurmConfig(**values, source=str(file))


def _problem(name: str, value: object) -> str | None:
    """Return the problem of a value; None if it is valid."""
    if name == "options":
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            return 'expected a list of options of sbatch, each a string, as in ["--qos=high"]'
        for word in value:
            option = word.partition("=")[0]
            if not word.startswith("-") or word == "--":
                return f"{word!r}: expected one option in each string, as in --qos=high"
            short = option[:2] if not option.startswith("--") else option
            if option in _RESERVED or short in _RESERVED:
                return f"{option} is set by the harness or by another key of [slurm]; remove it"
        return None
    if name == "spares":
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        return None if whole else "expected a number of nodes, 0 or more"
    pattern, expected = _EXPECTED[name]
    if not isinstance(value, str):
        return f"expected {expected}, a string; got {kind(value)}"
    return None if pattern.fullmatch(value) else f"expected {expected}"
