"""The table of cases at the top of a page, which page.js sorts and filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from .html import css_class, folded

_FULL_WIDTH = 2
"""The number of columns that a phone shows without their names."""
_FEW = 4


@dataclass(frozen=True)
class CaseLine:
    """A row: its state and the words by which it is filtered, and its cells by column, only those that are filled."""

    state: str
    about: str
    cells: Mapping[str, str]


def case_table(
    lines: Sequence[CaseLine],
    columns: Mapping[str, str],
    states: Sequence[str],
    legend: str = "Meaning of the columns",
    further: Mapping[str, str] | None = None,
) -> str:
    """Return the table with those columns that some case fills; ``columns``: all of them in order, with their meanings.

    ``states``: those by which a button filters; ``legend``: the title of the meanings; ``further``: more of them.
    """
    if not lines:
        return ""
    names = [name for name in columns if any(name in line.cells for line in lines)]
    numbers = {name for name in names if any(line.cells.get(name, "").startswith("<td class=number") for line in lines)}
    empty = {name: "<td class=number></td>" if name in numbers else "<td></td>" for name in names}
    head = "".join(
        f"<th data-sort{' class=number' if name in numbers else ''}><button>{escape(name)}</button></th>"
        for name in names
    )
    body = "".join(
        f'<tr data-state="{css_class(line.state)}" data-about="{escape(line.about)}">'
        f"{''.join(_named(place, name, line.cells.get(name, empty[name])) for place, name in enumerate(names))}</tr>"
        for line in lines
    )
    few = "" if len(lines) > _FEW else " hidden"
    buttons = "".join(f'<button data-state="{css_class(name)}" aria-pressed="false">{name}</button>' for name in states)
    return (
        '<h2 id="overview">Overview</h2>'
        f'<div class="filter-cases"{few}>'
        '<input type="search" placeholder="filter by words of the case" aria-label="filter cases">'
        f'<button data-state="" aria-pressed="true">all</button>{buttons}</div>'
        f'<div class="wide" tabindex="0"><table id="flagperf-cases"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
        f"{_legend(legend, {**{name: columns[name] for name in names}, **(further or {})})}"
    )


def cell(text: str, value: float | str | None = None, below: str = "", *, number: bool = True) -> str:
    """Return a cell with a small text below; ``value`` is what the column is sorted by. Empty without a text."""
    if not text:
        return ""
    sorted_by = "" if value is None else f' data-value="{value if isinstance(value, str) else f"{value:.6g}"}"'
    small_text = f'<span class="spread">{escape(below)}</span>' if below else ""
    return f"<td{' class=number' if number else ''}{sorted_by}>{text}{small_text}</td>"


def _named(place: int, name: str, cell: str) -> str:
    """Return the cell with the name of its column, which page.css shows on a phone."""
    return cell if place < _FULL_WIDTH else cell.replace("<td", f'<td data-of="{escape(name)}"', 1)


def _legend(title: str, meanings: Mapping[str, str]) -> str:
    """Return the meaning of each column that is not clear by its name."""
    terms = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in meanings.items() if text)
    return folded(title, f'<dl class="legend">{terms}</dl>' if terms else "")
