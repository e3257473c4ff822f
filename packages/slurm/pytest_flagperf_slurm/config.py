"""How jobs are requested: the table [slurm] of the settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pytest_flagperf.problems import Problems
from pytest_flagperf.typed import Rule, read_table

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


_Partitions = Annotated[str, Rule("the name of a partition, or several with commas", _WORD.fullmatch)]
_Account = Annotated[str, Rule("the name of an account", _WORD.fullmatch)]
_Time = Annotated[str, Rule('a time limit as for sbatch, such as "30", "4:00:00" or "1-12:00:00"', _TIME.fullmatch)]
_Gres = Annotated[str, Rule('the name of a generic resource, such as "gpu" or "gpu:a100"', _GRES.fullmatch)]
_Python = Annotated[
    str, Rule("the name or path of a program on the nodes, of letters, digits, / . _ + and -", _PYTHON.fullmatch)
]
_Options = Annotated[
    tuple[str, ...], Rule('a list of options of sbatch, each a string, as in ["--qos=high"]', lambda _: True)
]
_Spares = Annotated[int, Rule("a number of nodes, 0 or more", lambda spares: spares >= 0)]


class SlurmConfigError(Problems):
    """An invalid table [slurm]."""


@dataclass(frozen=True)
class SlurmConfig:
    """The table [slurm]; None leaves a choice to Slurm. ``source`` is the file."""

    partition: _Partitions | None = None
    """The partition of the jobs."""
    account: _Account | None = None
    """The account of the jobs."""
    time: _Time | None = None  # time limit of a job, as sbatch takes it
    gres: _Gres = "gpu"  # the name, or name:type, of the accelerators in Slurm
    options: _Options = ()  # further options of sbatch
    spares: _Spares = 0
    """Nodes of a job beyond those of its case, which then survives the loss of a node (``--no-kill``)."""
    python: _Python = "python3"
    """The Python >= 3.8 that runs the agent on the nodes."""
    source: str = "--cluster=slurm"
    NOT_KEYS: ClassVar = ("source",)


def read_slurm(table: Mapping[str, Any], file: Path) -> SlurmConfig:
    """Read the table of a settings file; SlurmConfigError with all problems."""
    values, problems = read_table(SlurmConfig, table, "slurm")
    problems += [f"slurm.options: {problem}" for problem in _option_problems(values.get("options", ()))]
    if problems:
        raise SlurmConfigError([f"{file}: {problem}" for problem in problems])
    return SlurmConfig(**values, source=str(file))


def _option_problems(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        option = word.partition("=")[0]
        short = option[:2] if not option.startswith("--") else option
        if not word.startswith("-") or word == "--":
            yield f"{word!r}: expected one option in each string, as in --qos=high"
        elif option in _RESERVED or short in _RESERVED:
            yield f"{option} is set by the harness or by another key of [slurm]; remove it"
