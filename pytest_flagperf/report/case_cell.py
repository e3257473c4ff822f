"""The cell with the case of a test in the table of pytest-html, and its link to the case's section of the page."""

from __future__ import annotations

import re
from html import escape

CASE_HEADER = '<th class="sortable col-case" data-column-type="case">Case</th>'


def case_cell(case: str = "") -> str:
    """Return the cell of a test with a link to its case, by which page.js puts the test into the case's section."""
    link = f'<a href="#{anchor(case)}">{escape(case)}</a>' if case else ""
    return f'<td class="col-case">{link}</td>'


def anchor(case: str) -> str:
    """Return the id of a case's section in the page."""
    return f"case-{re.sub(r'[^A-Za-z0-9_.]+', '-', case)}"
