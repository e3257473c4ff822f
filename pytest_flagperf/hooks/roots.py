"""The folders with suites and vendors that installed packages provide by the hook flagperf_roots."""

from __future__ import annotations

from pathlib import Path

from ..problems import Problems
from .plugins import call


def installed_roots() -> dict[Path, str]:
    """Return the folders, each with its package and version; Problems if a package does not return folders."""
    packages: dict[Path, str] = {}
    problems: list[str] = []
    for answer in call("flagperf_roots", str, Path):
        problems += [answer.problem] if answer.problem else []
        of = f"{answer.plugin.package} {answer.plugin.version}"
        packages |= {Path(str(value)).resolve(): of for value in answer.values}
    if problems:
        raise Problems(problems)
    return packages
