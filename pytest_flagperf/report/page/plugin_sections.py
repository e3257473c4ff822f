"""The sections that installed plugins add to the page."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from pytest_flagperf.hooks import Html, Plugin, Section, Table
from pytest_flagperf.hooks.plugins import FIX, call, has
from pytest_flagperf.problems import shown
from pytest_flagperf.report.page.html import Number, table
from pytest_flagperf.results.figures.units import plain
from pytest_flagperf.results.tables import store

_HOOK = "flagperf_sections"


def sections(run_dir: Path) -> Iterator[str]:
    """Yield the sections of all plugins; an error of a plugin is a sentence in place of its sections."""
    if not has(_HOOK):
        return
    for answer in call(_HOOK, Section, run=store.load_run(run_dir)):
        if answer.problem:
            yield _error(answer.problem)
        for number, section in enumerate(answer.values, 1):
            try:
                yield _section(answer.plugin, number, section)
            except (TypeError, ValueError) as error:
                yield _error(f"{answer.plugin.label}: {_HOOK}(): {error}; {FIX}")


def _section(plugin: Plugin, number: int, section: Section) -> str:
    if not isinstance(section.title, str) or not section.title.strip():
        raise TypeError(f"the title is {shown(section.title)}; expected a text")
    if isinstance(section.content, str):
        raise TypeError(f"the content is {shown(section.content)}; expected a list of texts, Table and Html")
    content = "".join(_part(part) for part in section.content)
    source = f"from {plugin.package} {plugin.version}"
    heading = f'<h2 id="plugin-{plugin.name}-{number}">{escape(section.title)} <small>{escape(source)}</small></h2>'
    return f"{heading}{content}"


def _part(part: object) -> str:
    if isinstance(part, Html):
        return str(part)
    if isinstance(part, str):
        return f"<p>{escape(part)}</p>"
    if not isinstance(part, Table):
        raise TypeError(f"the content has {shown(part)}; expected a text, Table or Html")
    wrong = [row for row in part.rows if len(row) != len(part.head)]
    if wrong:
        raise ValueError(f"a row is {shown(wrong[0])}; expected {len(part.head)} cells, as the head has")
    return table(part.head, [[_cell(cell) for cell in row] for row in part.rows])


def _cell(cell: object) -> str:
    if isinstance(cell, (int, float)) and not isinstance(cell, bool):
        return Number(plain(cell))
    if not isinstance(cell, str):
        raise TypeError(f"a cell is {shown(cell)}; expected a text or a number")
    return str(cell)  # no Markup: texts of cells are escaped


def _error(problem: str) -> str:
    return f'<p class="bad">{escape(problem)}</p>'
