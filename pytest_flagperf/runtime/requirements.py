"""The requirements files of several suites: their union, and their conflicts."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from flagperf_driver import addresses

from . import RuntimeSetupError

OVERRIDES = "overrides.txt"
"""The file beside a vendor's requirements.txt whose lines replace what its packages require."""
_INCLUDE = re.compile(r"(?:-r|--requirement)[ =]*(\S+)")
_OPTION = re.compile(r"(--?[A-Za-z][A-Za-z-]*)(\s*[= ]\s*|)(.*)")
_WITH_ADDRESS = ("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "-e", "--editable", "--trusted-host")
_NAMED = re.compile(r"[A-Za-z0-9][\w.-]*\s*([=<>~![]|[A-Za-z0-9]|$)(?!.*(/|\\| -))")
"""Matches lines that begin with a package's name and are neither options nor paths."""


@dataclass(frozen=True)
class RequirementLine:
    """A requirement, or an option that is passed to the installer unchanged."""

    text: str
    file: Path
    number: int

    @property
    def requirement(self) -> Requirement | None:
        return _parsed(self.text)

    @property
    def where(self) -> str:
        return f"{self.file}:{self.number}: {self.shown}"

    @property
    def shown(self) -> str:
        """Return the text without secrets; of an option's value only addresses are shown."""
        option = _OPTION.fullmatch(self.text)
        if option is None:
            return addresses.redacted_text(self.text)
        public = addresses.redacted(option[3]) if option[1] in _WITH_ADDRESS else addresses.HIDDEN if option[3] else ""
        return f"{option[1]}{option[2]}{public}"


@cache  # suites of a framework have the same lines
def _parsed(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def union(files: Iterable[Path]) -> list[RequirementLine]:
    """Return the lines of all files without duplicates."""
    lines: dict[str, RequirementLine] = {}
    for file in files:
        for line in read_lines(file, ()):
            lines.setdefault(line.text, line)
    problems = [f"  {name}:\n    {one.where}\n    {other.where}" for name, one, other in _conflicts(lines.values())]
    if problems:
        raise RuntimeSetupError("conflicting requirements:\n" + "\n".join(problems))
    return list(lines.values())


def conflicting(files: Iterable[Path]) -> set[Path]:
    """Return the files with a line that conflicts with a line of another file; union() reports unreadable files."""
    lines: dict[str, RequirementLine] = {}
    files_of: dict[str, set[Path]] = defaultdict(set)
    for file in files:
        with contextlib.suppress(RuntimeSetupError):
            for line in read_lines(file, ()):
                lines.setdefault(line.text, line)
                files_of[line.text].add(file)
    pairs = [(files_of[one.text], files_of[other.text]) for _, one, other in _conflicts(lines.values())]
    both = [*pairs, *((second, first) for first, second in pairs)]
    return {file for first, second in both for file in first if second - {file}}


def required_by_all(files: Iterable[Path]) -> set[str]:
    """Return the canonical names of the packages that every one of the files requires."""
    each = [{str(canonicalize_name(one.name)) for line in union([file]) if (one := line.requirement)} for file in files]
    return set.intersection(*each) if each else set()


def read_lines(file: Path, including: tuple[Path, ...]) -> Iterator[RequirementLine]:
    """Yield the lines of a file and of the files that it includes."""
    if file in including:
        raise RuntimeSetupError(f"{file}: includes itself through {including[-1]}")
    try:
        text = file.read_text("utf-8-sig")
    except OSError as error:
        raise RuntimeSetupError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RuntimeSetupError(f"{file}: not UTF-8: {error}") from None
    # A backslash continues a line, which keeps the number of its first line.
    after = 1
    for raw in text.replace("\\\n", "\0").splitlines():
        number, after = after, after + 1 + raw.count("\0")
        line = re.sub(r"(^|\s)#.*", "", raw.replace("\0", " ")).strip()
        included = _INCLUDE.fullmatch(line)
        if included:
            yield from read_lines((file.parent / included[1]).resolve(), (*including, file))
        elif line:
            yield _checked(RequirementLine(line, file, number))


def _checked(line: RequirementLine) -> RequirementLine:
    """Return the line; RuntimeSetupError, with file and number, if its requirement is invalid."""
    if line.requirement is None and _NAMED.match(line.text):
        raise RuntimeSetupError(f"{line.where}: invalid requirement; expected for example torch==2.10")
    return line


def _conflicts(lines: Iterable[RequirementLine]) -> Iterator[tuple[str, RequirementLine, RequirementLine]]:
    """Yield a package with a pinned version and the line that forbids it; the installer finds other conflicts."""
    by_name: dict[str, list[tuple[RequirementLine, Requirement]]] = defaultdict(list)
    for line in lines:
        requirement = line.requirement
        if requirement is not None and requirement.marker is None:
            by_name[canonicalize_name(requirement.name)].append((line, requirement))
    for name, entries in by_name.items():
        for index, (line, first) in enumerate(entries):
            for other, second in entries[index + 1 :]:
                if _forbids(first.specifier, second.specifier) or _forbids(second.specifier, first.specifier):
                    yield name, line, other


def _forbids(specifier: SpecifierSet, pinned: SpecifierSet) -> bool:
    versions = [pin.version for pin in pinned if pin.operator == "==" and not pin.version.endswith(".*")]
    return any(not specifier.contains(version, prereleases=True) for version in versions)
