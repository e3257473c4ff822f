"""The generated sections of a Markdown document: the lines between two marker lines."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from pytest_flagperf.problems import Problems, near

BEGIN = "<!-- {name}: written by tools.{command} -->"
END = "<!-- end of {name} -->"
CALIBRATION = "calibration"
"""The section that ``tools.calibrate`` writes; ``tools.readme`` writes all others."""
_MARKER = re.compile(
    r"<!-- (?:(?P<begin>[\w-]+): written by tools\.(?P<command>readme|calibrate)|end of (?P<end>[\w-]+)) -->"
)


def read_document(file: Path) -> str:
    """Return the text of a document; raise Problems if it is not UTF-8."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Problems([f"{file}: byte {error.start} is not UTF-8; save the file as UTF-8"]) from None


def has_sections(text: str) -> bool:
    """Return True if a document contains a generated section."""
    return any(marker and marker["begin"] for marker in map(_MARKER.fullmatch, text.splitlines()))


def hand_written(text: str) -> str:
    """Return the document without its generated sections."""
    kept, inside = [], False
    for line in text.splitlines():
        marker = _MARKER.fullmatch(line)
        inside = bool(marker["begin"]) if marker else inside
        if not inside:
            kept.append(line)
    return "\n".join(kept)


def marker_problems(text: str, names: Collection[str]) -> list[str]:
    """Return the problems of the markers in a document, which must have exactly these sections.

    The section CALIBRATION may always exist.
    """
    problems: list[str] = []
    seen: set[str] = set()
    opened: tuple[int, str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        marker = _MARKER.fullmatch(line)
        if marker is None:
            continue
        begin, end = marker["begin"], marker["end"]
        if opened and (begin or end != opened[1]):
            problems.append(f"line {opened[0]}: section {opened[1]} has no end: expected the line {_end(opened[1])!r}")
        elif end and not opened:
            problems.append(f"line {number}: section {end} has no beginning: expected the line {_begin(end)!r} before")
        if begin and begin not in names and begin != CALIBRATION:
            allowed = near(begin, names) or f"; allowed: {', '.join(names)}"
            problems.append(f"line {number}: unknown section {begin!r}{allowed}")
        if begin in seen:
            problems.append(f"line {number}: section {begin} occurs twice; remove one")
        seen.add(begin or "")
        opened = (number, begin) if begin else None
    if opened:
        problems.append(f"line {opened[0]}: section {opened[1]} has no end: expected the line {_end(opened[1])!r}")
    missing = [name for name in names if name not in seen]
    problems += [f"no section {name}: add the lines {_begin(name)!r} and {_end(name)!r}" for name in missing]
    return problems


def filled(text: str, sections: Mapping[str, str]) -> str:
    """Return the document with these texts in its sections; the markers must be valid."""
    return "".join(_filled(text, sections))


def stale(text: str, sections: Mapping[str, str]) -> list[str]:
    """Return the names of the sections that are out of date in the document."""
    return [name for name in sections if filled(text, {name: sections[name]}) != text]


def _filled(text: str, sections: Mapping[str, str]) -> Iterator[str]:
    inside = False
    for line in text.splitlines(keepends=True):
        marker = _MARKER.fullmatch(line.rstrip("\n"))
        name = marker["begin"] or "" if marker else ""
        if marker and marker["end"]:
            inside = False
        if not inside:
            yield line
        if name in sections:
            inside = True
            yield f"\n{sections[name]}\n\n"


def _begin(name: str) -> str:
    return BEGIN.format(name=name, command="calibrate" if name == CALIBRATION else "readme")


def _end(name: str) -> str:
    return END.format(name=name)
