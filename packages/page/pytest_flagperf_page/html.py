"""HTML elements: tables, folded sections, the style and script of a page.

Texts of logs and configs are escaped.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from urllib.parse import quote

from pytest_flagperf.stored.layout import PAGE

_STYLES = ("vendored/uPlot.min.css", "page.css")
_SCRIPTS = ("vendored/uPlot.iife.min.js", "page.js")


class Number(str):
    """A cell that is aligned to the right."""


class Name(str):
    """A cell whose text stays on one line."""


class Markup(str):
    """A cell that contains HTML."""


def style() -> str:
    """Return the style, needed once per page."""
    return f"<style>{''.join(map(_asset, _STYLES))}</style>"


def script() -> str:
    """Return the script, needed once per page, before or after the charts."""
    return "".join(f"<script>{_asset(name)}</script>" for name in _SCRIPTS)


@cache
def _asset(name: str) -> str:
    return Path(__file__).parent.joinpath(name).read_text(encoding="utf-8")


def document(title: str, body: str) -> str:
    """Return a complete page that opens from disk without a network."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>{style()}</head>\n<body><header><h1>{escape(title)}</h1></header>\n"
        f"{body}\n{script()}</body></html>\n"
    )


def figures(head: Sequence[str], rows: Iterable[Sequence[str]], meanings: Sequence[str] = ()) -> str:
    """Return a table of numbers and their names, each with its meaning below."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = ""
    for number, (name, *cells) in enumerate(rows):
        below = f"<small>{escape(meanings[number])}</small>" if meanings and meanings[number] else ""
        values = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        body += f'<tr><th scope="row">{escape(name)}{below}</th>{values}</tr>'
    table = f'<table class="figures"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
    return _wide(table)


def _wide(table: str) -> str:
    """Return a table in a box that scrolls, also by keyboard."""
    return f'<div class="wide" tabindex="0">{table}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], marked: Sequence[bool] = ()) -> str:
    """Return a table in a box that scrolls; ``marked`` rows are highlighted."""
    rows = list(rows)
    numbers = [isinstance(cell, Number) for cell in rows[0]] if rows else []
    top = "".join(
        f"<th{' class=number' if right else ''}>{escape(name)}</th>"
        for name, right in zip(head, numbers or [False] * len(head), strict=bool(head))
    )
    body = "".join(
        f"<tr{' class=deviates' if mark else ''}>{''.join(map(_cell, row))}</tr>"
        for row, mark in zip(rows, marked or [False] * len(rows), strict=True)
    )
    head_row = f"<thead><tr>{top}</tr></thead>" if head else ""
    return _wide(f"<table>{head_row}<tbody>{body}</tbody></table>")


def _cell(text: str) -> str:
    if isinstance(text, Markup):
        return f"<td>{text}</td>"
    kind = "number" if isinstance(text, Number) else "name" if isinstance(text, Name) else ""
    kind = kind or ("text" if len(text) > 60 else "")
    return f"<td{f' class={kind}' if kind else ''}>{escape(text)}</td>"


def folded(title: str, content: str, *, open_: bool = False) -> str:
    """Return a section that opens on a click; an empty string without content."""
    if not content:
        return ""
    opened = " open" if open_ else ""
    return f'<details class="part"{opened}><summary>{escape(title)}</summary>{content}</details>'


def items(sentences: Iterable[str], kind: str = "") -> str:
    """Return a list of sentences without duplicates; an empty string without sentences."""
    listed = "".join(f"<li>{escape(sentence)}</li>" for sentence in dict.fromkeys(sentences))
    return f"<ul{f' class={kind}' if kind else ''}>{listed}</ul>" if listed else ""


def address(file: Path, page_dir: Path) -> str:
    """Return the escaped address of a file, relative to the page; absolute for a file on another drive of Windows."""
    try:
        return escape(quote(Path(os.path.relpath(file, page_dir)).as_posix()))
    except ValueError:
        return escape(file.absolute().as_uri())


def linked(name: str, to: str) -> Markup:
    """Return a name as a link to an escaped address; the name alone if it is empty."""
    return Markup(f'<a href="{to}">{escape(name)}</a>' if to else escape(name))


def page_of(run_dir: Path, page_dir: Path) -> str:
    """Return the address of a run's page, relative to another page; empty if the run has none."""
    page = run_dir / PAGE
    return address(page, page_dir) if page.is_file() else ""


def css_class(state: str) -> str:
    return escape(state.replace(" ", "-"))


def state(name: str, label: str | None = None) -> str:
    """Return a state as a small label, with its own name or another text."""
    return f'<span class="state {css_class(name)}">{escape(label or name)}</span>'
