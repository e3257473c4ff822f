"""Blocks of Markdown, and the escaping of texts in them."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence


def lines(texts: Iterable[str]) -> str:
    """Return a block of lines, ended by an empty line."""
    return "\n".join([*texts, "", ""])


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str:
    """Return a table of cells that are already escaped; the first ``left`` columns are aligned to the left."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return lines(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def details(title: str, texts: Sequence[str]) -> Iterator[str]:
    """Yield a folded list; nothing without texts."""
    if texts:
        items = [f"- {text(item)}" for item in texts]
        yield lines([f"<details><summary>{text(title)}</summary>", "", *items, "", "</details>"])


def truncated(blocks: Sequence[str], limit: int, note: str) -> str:
    """Return as many whole blocks as fit into ``limit`` bytes; with a note if blocks are left out."""
    note = lines([f"*{note}*"])
    if sum(len(block.encode()) for block in blocks) <= limit:
        return "".join(blocks)
    kept, available = "", limit - len(note.encode())
    for block in blocks:
        available -= len(block.encode())
        if available < 0:
            break
        kept += block
    return kept + note if limit >= len(note.encode()) else ""


def code(content: str) -> str:
    """Return the text as code, in which Markdown does not replace the ``:100:`` of a case by a smiley."""
    return f"<code>{text(content)}</code>"


def text(content: str) -> str:
    """Escape a text, so that it has no markup, no table separators and no line breaks."""
    flat = " ".join(html.escape(content, quote=False).split())
    return "".join(f"\\{char}" if char in "|`*[]\\" else char for char in flat)
