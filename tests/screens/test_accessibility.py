"""The reports by axe's rules of accessibility, and used with the keyboard alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.screens.browser import DESK, PHONE, Shown, shown
from tests.screens.test_compared import pages as pages  # a fixture
from tests.screens.test_reports import CASES, ROWS, close_all, scroll_through
from tests.screens.test_reports import page_of as page_of  # a fixture
from tests.screens.test_reports import page_of_tests as page_of_tests  # a fixture

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow
PLANTED = """<!DOCTYPE html><html><head><meta charset="utf-8"><title>a page</title></head><body><main><h1>A heading</h1>
<p style="color: #aaa; background: #fff">pale</p><input><img src="data:,"><table><tr><th></th></tr></table>
</main></body></html>"""


def broken_rules(seen: Shown, *, without: set[str] | None = None) -> list[str]:
    """Return the rules that the page breaks, each with its first element."""
    from axe_playwright_python.sync_playwright import Axe

    response: dict[str, Any] = Axe().run(seen.page).response
    assert len(response["passes"]) > 5
    found = response["violations"]
    return [f"{rule['id']}: {rule['nodes'][0]['html']}" for rule in found if rule["id"] not in (without or set())]


def test_planted_problems_are_found(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(PLANTED)
    with shown(browser, path) as seen:
        rules = {text.partition(":")[0] for text in broken_rules(seen)}
    assert {"color-contrast", "label", "image-alt", "html-has-lang", "empty-table-header"} <= rules


@pytest.mark.parametrize(("dark", "width"), [(False, PHONE), (True, DESK)], ids=["light-phone", "dark-desk"])
def test_a_page_breaks_no_rule(browser: Browser, page_of: Callable[[int], Path], dark: bool, width: int) -> None:
    with shown(browser, page_of(12), width, dark=dark) as seen:
        close_all(seen)
        failed = seen.page.locator(f"{CASES}[data-state=failed]").first
        failed.evaluate("(each) => [each, ...each.querySelectorAll('details')].forEach((one) => { one.open = true; })")
        scroll_through(seen)
        assert broken_rules(seen) == []


@pytest.mark.parametrize(("dark", "name"), [(False, "compared"), (True, "trend"), (False, "index")])
def test_a_comparison_breaks_no_rule(browser: Browser, pages: dict[str, Path], dark: bool, name: str) -> None:
    with shown(browser, pages[name], dark=dark) as seen:
        scroll_through(seen)
        assert broken_rules(seen) == []


def test_the_report_of_pytest_breaks_only_rules_that_pytest_html_breaks(browser: Browser, page_of_tests: Path) -> None:
    with shown(browser, page_of_tests) as seen:
        scroll_through(seen)
        # Its own elements: a list within a list, and elements outside landmarks.
        assert broken_rules(seen, without={"list", "region"}) == []


def tab_to(seen: Shown, selector: str, most: int = 400) -> None:
    """Press the tabulator until an element has the focus; a focused element must be outlined."""
    for _ in range(most):
        seen.page.keyboard.press("Tab")
        if seen.page.evaluate("selector => document.activeElement.matches(selector)", selector):
            style = "getComputedStyle(document.activeElement)"
            assert seen.page.evaluate(f"{style}.outlineStyle !== 'none' || {style}.boxShadow !== 'none'"), selector
            return
    pytest.fail(f"{selector} did not get the focus")


def test_a_page_is_used_with_the_keyboard(browser: Browser, page_of: Callable[[int], Path]) -> None:
    with shown(browser, page_of(12)) as seen:
        page = seen.page
        tab_to(seen, ".headline + details > summary")
        page.keyboard.press("Enter")
        tab_to(seen, "[data-copy]")
        page.keyboard.press("Enter")
        page.locator("[data-copy]", has_text="copied").wait_for()
        tab_to(seen, ".filter-cases input")
        page.keyboard.type("h200 2:8")
        assert page.locator(f"{ROWS}:visible").count() == 1
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.press("Delete")
        tab_to(seen, "#flagperf-cases th[data-sort] button")
        page.keyboard.press("Enter")
        assert page.locator("#flagperf-cases th[aria-sort=ascending]").count() == 1
        tab_to(seen, "#flagperf-cases tbody a")
        page.keyboard.press("Enter")
        opened = page.evaluate("location.hash")
        assert page.locator(f"{opened}[open]").count() == 1
        page.evaluate("document.querySelector('main.flagperf details.case:not([open]) > summary').focus()")
        page.keyboard.press("Tab")
        page.keyboard.press("Shift+Tab")
        closed = page.locator(f"{CASES}:not([open])").count()
        page.keyboard.press("Enter")
        assert page.locator(f"{CASES}:not([open])").count() == closed - 1
        scroll_through(seen)
        tab_to(seen, ".u-label[role=button]")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.closest('.u-series').classList.contains('u-off')")
        assert seen.problems() == []
