"""The page of a comparison in a browser."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_flagperf.commands import main
from tests.helpers.stored_runs import dated, faster, run_of
from tests.screens.browser import DESK, PHONE, TABLET, shown

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of two runs on other hardware, and of twelve runs, the last of them slower, and their index."""
    folder = tmp_path_factory.mktemp("runs")
    rng = random.Random(1)
    for number in range(12):
        level = 1.0 if number < 7 else 0.8
        rounds = dated(number, *(level * rng.gauss(1, 0.01) for _ in range(3)))
        run_of(folder / "trend" / f"run2026112106{number:04}", rounds=rounds)
    runs = [
        run_of(folder / f"run2026112107{number:04}", rounds=faster(1.0, 0.99), hardware=chip, fingerprint={"key": chip})
        for number, chip in enumerate(("CPU", "X9"))
    ]
    made = {name: folder / f"{name}.html" for name in ("compared", "trend", "index")}
    assert main(["compare", *map(str, runs), "--ignore-differences", "--html", str(made["compared"])]) == 0
    assert main(["compare", str(folder / "trend"), "--html", str(made["trend"])]) == 1
    assert main(["report", "--all", str(folder / "trend"), "--to", str(made["index"])]) == 0
    return made


@pytest.mark.parametrize(
    ("name", "dark", "width"),
    [
        ("compared", False, PHONE),
        ("compared", True, DESK),
        ("trend", False, TABLET),
        ("trend", True, PHONE),
        ("index", True, DESK),
        ("index", False, PHONE),
    ],
)
def test_no_elements_overlap_and_every_chart_is_drawn(
    browser: Browser, pages: dict[str, Path], pictures: Path, name: str, dark: bool, width: int
) -> None:
    with shown(browser, pages[name], width, dark=dark) as seen:
        charts = seen.page.locator("figure.chart").all()
        assert len(charts) >= (1 if name == "index" else 3)
        for chart in charts:
            chart.scroll_into_view_if_needed()
            chart.locator("canvas").wait_for()
        assert all(seen.painted("figure.chart canvas"))
        assert seen.problems() == []
        seen.picture(pictures / f"{name}-{width}-{'dark' if dark else 'light'}.png")


def test_a_trend_shows_noise_change_and_the_run_under_the_pointer(browser: Browser, pages: dict[str, Path]) -> None:
    with shown(browser, pages["index"]) as seen:
        chart = seen.page.locator("figure.chart", has_text="over the runs").first
        chart.scroll_into_view_if_needed()
        plot = chart.locator(".u-over")
        plot.wait_for()
        canvas = chart.locator("canvas")
        width = canvas.evaluate("(canvas) => canvas.width")
        row = canvas.evaluate("""(canvas) => {
            const {data} = canvas.getContext("2d").getImageData(0, canvas.height >> 1, canvas.width, 1);
            return Array.from({length: canvas.width}, (_, x) => [...data.slice(4 * x, 4 * x + 4)]); }""")
        assert len(row) == width
        red = [x for x, (r, g, b, _) in enumerate(row) if r > 180 and g < 80 and b < 80]
        assert 0.4 < red[0] / width < 0.8, "the line between the seventh and the eighth of twelve runs"
        plot.hover(position={"x": 5, "y": 20})
        assert "run20261121060000" in chart.locator(".u-series").first.inner_text()
        bands = seen.page.locator(".bands").first.inner_text()
        assert "noise of a run" in bands
        assert "change" in bands
        assert seen.problems() == []


def test_a_comparison_is_filtered_by_words_and_verdicts(browser: Browser, pages: dict[str, Path]) -> None:
    with shown(browser, pages["trend"]) as seen:
        box, cases = seen.page.locator(".filter-cases"), seen.page.locator("details.case")
        box.evaluate("(each) => { each.hidden = false; }")  # few cases need no filter
        box.locator("button", has_text="worse").click()
        assert cases.evaluate_all("(all) => all.map((each) => each.hidden)") == [False]
        box.locator("input").fill("another case")
        assert cases.evaluate_all("(all) => all.map((each) => each.hidden)") == [True]
        assert seen.problems() == []
