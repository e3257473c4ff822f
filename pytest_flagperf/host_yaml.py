"""Read ``base/configs/host.yaml`` of FlagPerf: the YAML that it uses, and its cases."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .case import Case, CaseError
from .config.module import Assigned
from .problems import Problems, shown

_DOUBLE = r'"(?:[^"\\]|\\["\\/])*"'
_SINGLE = r"'(?:[^']|'')*'"
_FIRST = r"""(?:[^\s"'\[\]{},#&*!|>%@`:-]|-(?=\S))"""
_IN_LIST, _ON_LINE = (
    re.compile(rf"\s*({_DOUBLE}|{_SINGLE}|{_FIRST}(?:{more}|:(?=\S)|(?<=\S)#)*|)\s*")
    for more in (r"[^\[\]{},#:]", "[^#:]")
)
_ENTRY = re.compile(rf"({_DOUBLE}|{_SINGLE}|[\w.-]+(?::[\w.-]+)*)\s*:(?:\s+(.*))?$")
_END = re.compile(r"(?:(?<=\s)|^)#.*|$")
_BRACKET = re.compile(r"\s*\]\s*")
_WORDS = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
    **dict.fromkeys(("null", "~", ""), None),
}
_EXPECTED = 'expected NAME: value, with a number, a string or a list on the same line, or indented "name": value below'


def is_yaml(file: Path) -> bool:
    return file.suffix in (".yaml", ".yml")


# -- the YAML ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostYaml:
    """The values of the names of a host.yaml; ``lines`` has the line of each key of CASES."""

    names: Mapping[str, Assigned]
    lines: Mapping[str, int]


def load(file: Path) -> HostYaml:
    """Read a file; raise Problems for YAML that no file of this kind needs, and for names and cases set twice."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Problems([f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}"]) from error
    reader = _Reader(file)
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#") and line.rstrip() not in ("---", "..."):
            reader.read(number, line.rstrip())
    if reader.problems:
        raise Problems(reader.problems)
    return HostYaml(
        {name: Assigned(value, file, reader.at[name]) for name, value in reader.values.items()}, reader.lines
    )


class _Reader:
    """Lines of a file, one after the other: names without indentation, and the entries below a name."""

    def __init__(self, file: Path) -> None:
        self.problems: list[str] = []
        self.values: dict[str, object] = {}
        self.at: dict[str, int] = {}
        self.lines: dict[str, int] = {}
        self._file = file
        self._open = ""
        """The name whose entries may follow."""

    def read(self, number: int, line: str) -> None:
        try:
            if line[0] in " -" and self._open:
                self._entry(number, line.strip())
            else:
                self._name(number, line)
        except ValueError as error:
            self.problems.append(f"{self._file}:{number}: {error}")

    def _name(self, number: int, line: str) -> None:
        name, rest = _split(line)
        if name in self.values:
            raise ValueError(f"{name} is set in lines {self.at[name]} and {number}; keep one")
        self.values[name], self.at[name] = _value(rest), number
        self._open = name if _END.match(rest) else ""

    def _entry(self, number: int, line: str) -> None:
        above = self.values[self._open]
        if line.startswith("- "):
            if not isinstance(above, list | None):
                raise ValueError(_EXPECTED)
            self.values[self._open] = [*(above or ()), _value(line[2:])]
            return
        if not isinstance(above, dict | None):
            raise ValueError(_EXPECTED)
        key, rest = _split(line)
        if key in (above or ()):
            raise ValueError(f"case {shown(key)} is listed in lines {self.lines[key]} and {number}; keep one")
        self.values[self._open] = {**(above or {}), key: _value(rest)}
        if self._open == "CASES":
            self.lines[key] = number


def _split(line: str) -> tuple[str, str]:
    match = _ENTRY.match(line)
    if match is None:
        raise ValueError(_EXPECTED)
    return str(_scalar(match[1])), match[2] or ""


def _value(text: str) -> object:
    """Return a scalar, or a list of scalars in brackets; ValueError, without the text, which may contain a secret."""
    text = text.strip()
    items: list[object] = []
    match = _ON_LINE.match(text)
    if text.startswith("["):
        at = 1
        while not (match := _BRACKET.match(text, at)):
            item = _IN_LIST.match(text, at)
            if not item or not item[1] or text[item.end() : item.end() + 1] not in (",", "]"):
                break
            items.append(_scalar(item[1]))
            at = item.end() + (text[item.end()] == ",")
    if not match or not _END.match(text, match.end()):
        raise ValueError(_EXPECTED)
    return items if text.startswith("[") else _scalar(match[1])


def _scalar(text: str) -> object:
    text = text.strip()
    if text.startswith('"'):
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    return int(text) if re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", text) else text


# -- the cases -----------------------------------------------------------------------------------------------

_CHIP = "A100"
"""The chip of a case without one, whatever the vendor is."""
_WITHIN_A_HOST = "_intraserver"
TOOLKIT = "TOOLKIT"


def base_cases(entries: Mapping[str, object], hosts: int, nproc: int) -> Iterator[tuple[str, Case | CaseError]]:
    """Return each entry of CASES as a case whose model is FlagPerf's name, or with its problems."""
    for entry, framework in entries.items():
        name, _, chip = entry.partition(":")
        nnodes = 1 if name.endswith(_WITHIN_A_HOST) else hosts
        try:
            yield entry, Case.parse(":".join((name, str(framework), chip or _CHIP, str(nnodes), str(nproc), "1")))
        except CaseError as error:
            yield entry, CaseError(f"{shown(entry)}: {problem}" for problem in error.problems)
