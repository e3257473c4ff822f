"""The generated sections of a Markdown document: what stands between two marker lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_flagperf.problems import Problems, near

BEGIN = "<!-- {name}: written by flagperf readme -->"
END = "<!-- end of {name} -->"
_MARKER = re.compile(r"<!-- (?:(?P<begin>[\w-]+): written by flagperf readme|end of (?P<end>[\w-]+)) -->")


def read(file: Path) -> str:
    """The text of a document; raises Problems where it is not UTF-8."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Problems([f"{file}: byte {error.start} is not UTF-8; save the file as UTF-8"]) from None


def has_sections(text: str) -> bool:
    """Whether a document has a line that begins a generated section."""
    return any(marker and marker["begin"] for marker in map(_MARKER.fullmatch, text.splitlines()))


def hand_written(text: str) -> str:
    """The document without its generated sections."""
    kept, inside = [], False
    for line in text.splitlines():
        marker = _MARKER.fullmatch(line)
        inside = bool(marker["begin"]) if marker else inside
        if not inside:
            kept.append(line)
    return "\n".join(kept)


def problems(text: str, names: Mapping[str, object]) -> list[str]:
    """Sentences on what is wrong with the markers of a document that must have exactly these sections."""
    found: list[str] = []
    seen: set[str] = set()
    opened: tuple[int, str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        marker = _MARKER.fullmatch(line)
        if marker is None:
            continue
        begin, end = marker["begin"], marker["end"]
        if opened and (begin or end != opened[1]):
            found.append(f"line {opened[0]}: section {opened[1]} has no end: expected the line {_end(opened[1])!r}")
        elif end and not opened:
            found.append(f"line {number}: section {end} ends but does not begin: expected {_begin(end)!r} before")
        if begin and begin not in names:
            allowed = near(begin, names) or f"; allowed: {', '.join(names)}"
            found.append(f"line {number}: unknown section {begin!r}{allowed}")
        if begin in seen:
            found.append(f"line {number}: section {begin} is there twice; remove one")
        seen.add(begin or "")
        opened = (number, begin) if begin else None
    if opened:
        found.append(f"line {opened[0]}: section {opened[1]} has no end: expected the line {_end(opened[1])!r}")
    missing = [name for name in names if name not in seen]
    found += [f"no section {name}: add the lines {_begin(name)!r} and {_end(name)!r}" for name in missing]
    return found


def filled(text: str, sections: Mapping[str, str]) -> str:
    """The document with these texts between its markers, which must be well-formed."""
    return "".join(_filled(text, sections))


def stale(text: str, sections: Mapping[str, str]) -> list[str]:
    """The names of the sections whose text is another one in the document."""
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
    return BEGIN.format(name=name)


def _end(name: str) -> str:
    return END.format(name=name)
