"""The checks find the problems of a page, and no problems on a good page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.screens.browser import PHONE, shown

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow
PAGE = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>a page</title>
<meta name="viewport" content="width=device-width"></head><body>{}
<h1>A heading</h1><button>press</button>
<p>Some text that goes over <b>several</b> lines in a narrow window, as text does.</p>
<div style="overflow-x: auto"><table><tr>{}</tr></table></div>
<details><summary>More</summary><p>hidden</p><div style="width: 3000px">wide</div></details>
<canvas id="blank"></canvas><canvas id="drawn"></canvas>
<script>document.querySelector("#drawn").getContext("2d").fillRect(1, 1, 5, 5)</script></body></html>"""
CELLS = "<td>cell that is long</td>" * 40


def page(tmp_path: Path, planted: str = "") -> Path:
    path = tmp_path / "page.html"
    path.write_text(PAGE.format(planted, CELLS))
    return path


def test_a_good_page_has_no_problems(browser: Browser, tmp_path: Path) -> None:
    with shown(browser, page(tmp_path), PHONE) as seen:
        assert seen.problems() == []
        assert seen.painted("canvas") == [False, True]


@pytest.mark.parametrize(
    ("planted", "problem"),
    [
        ('<p style="margin-bottom: -2.5em">one text lies</p>', 'overlaps "one text lies"'),
        ('<div style="position: absolute; top: 25px">over it</div>', 'overlaps'),
        ('<img alt="" src="data:," width="90" height="90" style="position: absolute; top: 60px">', "overlaps <img>"),
        ('<div style="width: 500px">wide</div>', "the page is 508 px wide in a window of 400 px"),
        ('<p style="margin-left: -60px">on the left</p>', "<p> reaches from -"),
        ("<script>console.error('this went wrong')</script>", "error on the console: this went wrong"),
        ("<script>console.warn('take care')</script>", "warning on the console: take care"),
        ("<script>unknown.call()</script>", "an error in a script: unknown is not defined"),
        ('<img alt="" src="http://127.0.0.1:9/picture.png">', "the page requests http://127.0.0.1:9/picture.png"),
        ('<link rel="stylesheet" href="style.css">', "style.css"),
        ("<script>fetch('https://127.0.0.1:9/data').catch(() => null)</script>", "the page requests https://127.0.0.1:9/"),
    ],
)  # fmt: skip
def test_a_planted_problem_is_found(browser: Browser, tmp_path: Path, planted: str, problem: str) -> None:
    with shown(browser, page(tmp_path, planted), PHONE) as seen:
        seen.page.wait_for_timeout(50)
        problems = seen.problems()
    assert [text for text in problems if problem in text], problems
