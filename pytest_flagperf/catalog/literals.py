"""What a config file says about one name, without running it: collecting 10,000 cases must stay cheap."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_MOST = 1 << 20  # a larger file is refused when it is planned
_LINE = re.compile(
    r"^(?:(?P<name>\w+)[ \t]*(?::[^=\n]*)?=[ \t]*(?P<value>True|False)\b"
    r"|from[ \t]+\.?(?P<neighbour>\w+)[ \t]+import[ \t]+\*)",
    re.MULTILINE,
)


def flag(file: Path, name: str) -> bool | None:
    """The last ``name = True`` or ``False`` in a file or a neighbour it star-imports; None where there is none."""
    return _flags(file, frozenset([file])).get(name)


def _flags(file: Path, above: frozenset[Path]) -> dict[str, bool]:
    """``above`` are the files that import this one: a circle of them is told by whoever runs the config."""
    found: dict[str, bool] = {}
    for neighbour, name, value in _said(file):
        if not neighbour:
            found[name] = value == "True"
        elif (there := file.parent / f"{neighbour}.py") not in above:
            found |= _flags(there, above | {there})
    return found


@cache
def _said(file: Path) -> tuple[tuple[str, str, str], ...]:
    try:
        with file.open(encoding="utf-8-sig", errors="replace") as stream:
            text = stream.read(_MOST)
    except OSError:
        return ()
    found = _LINE.finditer(text)
    return tuple((match["neighbour"] or "", match["name"] or "", match["value"] or "") for match in found)
