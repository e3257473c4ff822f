"""The reports in a browser: narrow and wide, light and dark, and printed.

Every page is opened from disk without a network. All screenshots are kept: see ``pictures``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from markupsafe import escape

from pytest_flagperf.report import charts
from pytest_flagperf.report.case_cell import case_cell
from pytest_flagperf_page import chart_html, html
from tests.helpers import many_cases
from tests.helpers.reporting import report
from tests.plugin.conftest import Toy, move_in
from tests.screens.browser import DESK, PHONE, TABLET, Shown, named, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser, Locator

pytestmark = pytest.mark.slow
CASES = "main.flagperf details.case"
ROWS = "#flagperf-cases tbody tr"
FILTER = ".filter-cases"
CANVAS = "figure.chart canvas"


@pytest.fixture(scope="session")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """A function that returns the report of a stored run with a number of cases."""

    @cache
    def made(cases: int) -> Path:
        folder = tmp_path_factory.mktemp(f"run{cases}")
        run = many_cases.make(folder / "run", cases)
        report(run, folder / "report.html")
        return folder / "report.html"

    return made


@pytest.fixture(scope="session")
def page_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run of two good suites, one with a NaN loss, and a failing test that is not of flagperf."""
    place: Any = SimpleNamespace(path=tmp_path_factory.mktemp("tests"))
    with pytest.MonkeyPatch.context() as patch:
        move_in(place.path, patch)
        toy = Toy(place)
        for model, base in {"alpha": "", "beta": "", "gamma": 'fault = "nan"\n'}.items():
            toy.suite(model, base)
        (toy.root / "suites" / "test_other.py").write_text("def test_other():\n    print('text')\n    assert 1 == 2\n")
        going = toy.start("suites", "--nodes=1x1,1x2")
        assert going.wait() == pytest.ExitCode.TESTS_FAILED, going.text
    return toy.runs[-1] / "report.html"


def open_one(seen: Shown) -> None:
    """Open a case, if possible with eight cards, and its first round."""
    closed = seen.page.locator(f"{CASES}:not([open]) > summary")
    if closed.count():
        closed.nth(min(3, closed.count() - 1)).click()
    case = seen.page.locator(f"{CASES}[open]").first
    case.wait_for()
    closed_round = case.locator("details:not([open]) > summary", has_text="Round 1")
    for _ in range(5):
        if closed_round.count():
            closed_round.click()  # misses while charts that were just drawn move the page
            seen.page.wait_for_timeout(100)
    scroll_through(seen)


def close_all(seen: Shown) -> None:
    """Close the cases, of which the failed ones are open at first."""
    seen.page.locator("[data-all=close]").click()


def scroll_through(seen: Shown) -> None:
    """Scroll to all charts, which are drawn when they become visible."""
    assert seen.read_through("figure.chart", "canvas") == 0


def follow(seen: Shown, link: Locator) -> Locator:
    """Click on a link and return its case, which must be open."""
    target = str(link.get_attribute("href"))
    link.click()
    case = seen.page.locator(f"{target}[open]")
    case.wait_for()
    return case


@pytest.mark.parametrize(
    ("cases", "dark", "width"),
    [
        (1, False, PHONE),
        (12, True, PHONE),
        (12, False, TABLET),
        (12, False, DESK),
    ],
)
def test_a_page_of_cases(
    browser: Browser, page_of: Callable[[int], Path], pictures: Path, cases: int, dark: bool, width: int
) -> None:
    colours = "dark" if dark else "light"
    with shown(browser, page_of(cases), width, dark=dark) as seen:
        assert seen.page.locator(CASES).count() == cases
        assert seen.page.locator(f"{CASES}[open]").count() == {1: 1, 12: 5}[cases]
        scroll_through(seen)
        seen.picture(pictures / named(["cases", cases, colours, width]))
        assert seen.problems() == []
        open_one(seen)
        charts = f"{CASES}[open] {CANVAS}"
        seen.page.locator(charts).nth(5).wait_for(state="attached")
        drawn = seen.painted(charts)
        seen.picture(pictures / named(["cases", cases, colours, width, "open"]))
        assert len(drawn) > 5
        assert all(drawn)
        assert seen.problems() == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_report_of_pytest_itself(browser: Browser, page_of_tests: Path, pictures: Path, dark: bool) -> None:
    """The report of a real run with passed and failed tests, and a test that is not of flagperf."""
    for width in (PHONE, DESK):
        with shown(browser, page_of_tests, width, dark=dark) as seen:
            scroll_through(seen)
            seen.picture(pictures / named(["pytest", "dark" if dark else "light", width]))
            assert seen.problems() == []
            case = follow(seen, seen.page.locator('#results-table a[href^="#"]').first)
            case.locator("details.pytest > summary").click()
            assert "test_converges" in case.locator("details.pytest tr.failed").inner_text()
            scroll_through(seen)
            seen.picture(pictures / named(["pytest", "dark" if dark else "light", width, "open"]))
            assert seen.problems() == []


def test_what_pytest_html_does_by_itself_still_works(browser: Browser, page_of_tests: Path, tmp_path: Path) -> None:
    with shown(browser, page_of_tests) as seen:
        assert seen.page.locator("details.tests[open]").count() == 1, "a test has no case"
        items, log = seen.page.locator("#results-table tr.collapsible"), seen.page.locator("#results-table .log")
        assert items.count() == 16
        visible = seen.page.locator("#results-table .log:visible").all_inner_texts()
        assert len(visible) == 1, "the tests of a case are closed, because its section has the reason"
        assert "assert 1 == 2" in visible[0]
        items.first.locator(".col-result").click()
        assert log.first.is_visible()
        seen.page.locator("input[data-test-result=passed]").click()
        assert items.count() == 3
        assert seen.problems() == []
    none, alpha = (str(escape(json.dumps(case_cell(case))[1:-1])) for case in ("", "alpha:plain:CPU:1:1:1"))
    changed = tmp_path / "report.html"
    changed.write_text(page_of_tests.read_text(encoding="utf-8").replace(none, alpha), encoding="utf-8")
    with shown(browser, changed) as seen:
        seen.page.locator("details.tests > summary").wait_for()
        assert seen.page.locator("details.tests[open]").count() == 0, "each test is in the section of its case"


@pytest.fixture
def dozen(browser: Browser, page_of: Callable[[int], Path]) -> Iterator[Shown]:
    """A page of twelve cases, which must have no problems at the end."""
    with shown(browser, page_of(12)) as seen:
        yield seen
        assert seen.problems() == []


def picture_of(seen: Shown) -> str:
    data: str = seen.page.locator(f"{CASES}[open] {CANVAS}").first.evaluate("canvas => canvas.toDataURL()")
    return data


def changed(seen: Shown, before: str) -> bool:
    for _ in range(50):
        if picture_of(seen) != before:
            return True
        seen.page.wait_for_timeout(20)
    return False


def test_a_click_hides_and_shows_a_line_a_drag_zooms_and_charts_share_the_cursor(dozen: Shown) -> None:
    open_one(dozen)
    figure = dozen.page.locator(f"{CASES}[open] figure.chart").first
    whole = picture_of(dozen)
    name = figure.locator(".u-legend .u-series th").nth(1)
    name.click()
    assert changed(dozen, whole)
    without = picture_of(dozen)
    name.click()
    assert changed(dozen, without)
    # The cursor over a chart is shown in all charts with the same axis.
    over = dozen.page.locator(f"{CASES}[open] figure.chart .u-over").first
    over.hover()
    assert dozen.page.locator(f"{CASES}[open] figure.chart .u-cursor-x:not(.u-off)").count() >= 2
    whole = picture_of(dozen)
    over.drag_to(over, source_position={"x": 50, "y": 20}, target_position={"x": 150, "y": 20})
    assert changed(dozen, whole)
    zoomed = picture_of(dozen)
    over.dblclick()
    assert changed(dozen, zoomed)


def test_a_line_has_the_same_colour_in_all_charts(browser: Browser, tmp_path: Path) -> None:
    lines = [charts.ChartLine(f"device {number}", [0, 1, 2], [number, 1, 2]) for number in range(4)]
    made = [charts.Chart("Some", "time", "%", (lines[0], *lines[2:])), charts.Chart("All", "time", "W", tuple(lines))]
    path = tmp_path / "page.html"
    text = f'{html.style()}<div class="flagperf">{chart_html.html(made)}</div>{html.script()}'
    path.write_text(text, encoding="utf-8")
    with shown(browser, path) as seen:
        scroll_through(seen)
        marks = seen.page.locator(".u-legend .u-series:has(.u-marker)")
        found: list[list[str]] = marks.evaluate_all(
            "rows => rows.map(row => [row.querySelector('.u-label').innerText,"
            " getComputedStyle(row.querySelector('.u-marker')).borderColor])"
        )
    named = [each for each in found if each[0].startswith("device")]
    assert [name for name, _ in named] == [f"device {number}" for number in (0, 2, 3, 0, 1, 2, 3)]
    assert len({(name, colour) for name, colour in named}) == len({colour for _, colour in named}) == 4


def rows(seen: Shown) -> list[str]:
    """Return the cases of the visible rows."""
    script = "rows => rows.filter((row) => row.checkVisibility()).map((row) => row.dataset.about)"
    cases: list[str] = seen.page.locator(ROWS).evaluate_all(script)
    return cases


def test_the_overview_is_sorted_by_clicks_links_to_its_cases_and_is_filtered(dozen: Shown) -> None:
    everything = rows(dozen)
    assert len(everything) == 12
    reversed_ = []
    for head in dozen.page.locator("#flagperf-cases th[data-sort] button").all():
        head.click()
        up = rows(dozen)
        head.click()
        assert sorted(up) == sorted(rows(dozen)) == sorted(everything)
        reversed_.append(up != rows(dozen))
    assert any(reversed_)
    case = follow(dozen, dozen.page.locator(f'{ROWS} a[href^="#"]').nth(5))
    assert case.locator("summary").first.is_visible()
    dozen.page.locator(f"{FILTER} input").first.fill("h200 2:8")
    assert sorted(rows(dozen)) == sorted(row for row in everything if ":H200:2:8:" in row)
    dozen.page.locator(f"{FILTER} input").first.fill("")
    dozen.page.locator(f"{FILTER} button[data-state=failed]").first.click()
    assert 0 < len(rows(dozen)) < 12
    assert dozen.page.locator(f"{CASES}:visible").count() == len(rows(dozen))


@pytest.mark.parametrize("cases", [1, 6, 12])
def test_paper_has_the_overview_the_failures_and_the_opened_cases(
    browser: Browser, page_of: Callable[[int], Path], pictures: Path, cases: int
) -> None:
    with shown(browser, page_of(cases), dark=True) as seen:
        sizes = []
        for name in ("first", "opened"):
            margin: Any = dict.fromkeys(("top", "bottom", "left", "right"), "10mm")  # as browsers print
            paper = seen.page.pdf(path=pictures / f"paper-{cases}-{name}.pdf", format="A4", margin=margin)
            sizes.append(len(re.findall(rb"/Type /Page\b", paper)))
            seen.page.locator("[data-all=open]").click()
        assert sizes[0] <= 1 + cases // 6
        assert sizes[1] > sizes[0]
        seen.page.set_viewport_size({"width": 720, "height": 1000})
        seen.page.emulate_media(media="print")
        seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert all(case.is_visible() for case in seen.page.locator(f"{CASES} > div").all())
        drawn = seen.painted(CANVAS)
        assert drawn
        assert all(drawn)
        seen.picture(pictures / named(["paper", cases]))
        assert seen.problems() == []
