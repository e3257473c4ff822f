"""The results of a benchmark: tables, and goals with their measurements."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")
"""pytest without Hypothesis: only this project's own tests use it, and it takes long to load."""


@dataclass(frozen=True)
class Goal:
    """An upper bound of a measurement, or a lower bound if ``least``. ``noise`` is its relative random variation."""

    what: str
    bound: float
    got: float
    unit: str = ""
    least: bool = False
    noise: float = 0.0

    @property
    def met(self) -> bool:
        """True if the measurement is within the bound."""
        return self.got >= self.bound if self.least else self.got <= self.bound

    @property
    def missed(self) -> bool:
        """True if the measurement misses the bound by more than its noise."""
        if self.least:
            return self.got < self.bound * (1 - self.noise)
        return self.got > self.bound * (1 + self.noise)

    @property
    def line(self) -> str:
        """The goal in the list of goals."""
        within = f": missed by less than its noise, {self.noise:.0%}"
        word = "" if self.met else ": **missed**" if self.missed else within
        least = "least" if self.least else "most"
        return (
            f"* {self.what}: {self.got:.3g} {self.unit}".rstrip()
            + f", goal at {least} {self.bound:g} {self.unit}".rstrip()
            + word
        )


@dataclass(frozen=True)
class Section:
    """The text between the markers of a benchmark in benchmarks/README.md."""

    tables: Sequence[str]
    goals: Sequence[Goal]

    @property
    def text(self) -> str:
        """The section as Markdown."""
        judged = "\n".join(goal.line for goal in self.goals)
        return "\n\n".join(filter(None, [*self.tables, judged]))


def summary(goals: Sequence[Goal]) -> str:
    """Return how many goals are met, and those that are missed."""
    missed = [goal.line for goal in goals if not goal.met]
    counted = f"{len(goals) - len(missed)} of {len(goals)} goals are met."
    return "\n".join([f"{counted} Missed:\n", *missed]) if missed else counted


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def relative(path: Path) -> str:
    """Return the path as a command in the checkout names it."""
    return str(path.relative_to(REPO) if path.is_relative_to(REPO) else path)


@dataclass(frozen=True)
class Took:
    """The time of a command, and its output."""

    wall_s: float
    cpu_s: float
    stdout: str


def timed(command: Sequence[str], folder: Path = REPO, environment: Mapping[str, str] | None = None) -> Took:
    """Run a command that must succeed; the CPU time includes its child processes."""
    environment = dict(environment or os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a checkout keeps bytecode, as an installed package does
    before, began = children_s(), time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    wall_s = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return Took(wall_s, children_s() - before, done.stdout)


def children_s() -> float:
    """Return the CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
