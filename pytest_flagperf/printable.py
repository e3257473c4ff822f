"""Escape characters that control a terminal or hide text, in text from a rank, a host or a tool."""

from __future__ import annotations

import re
from typing import Any

# All characters except newline and tab that move the cursor, change the order of letters or are invisible: C0, DEL, C1,
# soft hyphen, directions, separators, zero-width marks, surrogates, tags. Joiners stay, since emoji need them.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
# Commands of CI services: "::error ...::" at the start of a line, "##[error]" anywhere.
_COMMAND = re.compile(r"^([^\S\n]*):(?=:[\w-]+(?: [^\n]*)?::)|#(?=#\w*\[)", re.MULTILINE)


def printable(text: str) -> str:
    r"""Return the text with each hidden character as Python writes it (``\x1b``); other text stays as it is."""
    if is_plain(text):
        return text
    shown = _HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text.replace("\r\n", "\n"))
    return _COMMAND.sub(lambda match: f"{match[1]}\\x3a" if match[0].endswith(":") else "\\x23", shown)


def is_plain(text: str) -> bool:
    """Return True for a line without anything to escape: true for nearly every text, and fast."""
    return text.isascii() and text.isprintable() and "::" not in text and "##" not in text


def printable_in(value: Any) -> Any:
    """Return a JSON value with all its texts, names included, made printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_in(name): printable_in(item) for name, item in value.items()}
    if isinstance(value, list):
        return [printable_in(item) for item in value]
    return value
