"""What a config file says about one name, without running it: collecting 10,000 cases must stay cheap."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_LINE = re.compile(
    r"^(?:(?P<name>\w+)[ \t]*(?::[^=\n]*)?=[ \t]*(?P<value>True|False)\b"
    r"|from[ \t]+\.?(?P<neighbour>\w+)[ \t]+import[ \t]+\*)",
    re.MULTILINE,
)


def flag(file: Path, name: str) -> bool | None:
    """The last ``name = True`` or ``False`` in a file or a neighbour it star-imports; None where there is none."""
    return _flags(file).get(name)


@cache
def _flags(file: Path) -> dict[str, bool]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found: dict[str, bool] = {}
    for match in _LINE.finditer(text):
        if match["neighbour"]:
            neighbour = file.parent / f"{match['neighbour']}.py"
            found |= _flags(neighbour) if neighbour != file else {}
        else:
            found[match["name"]] = match["value"] == "True"
    return found
