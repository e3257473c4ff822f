"""The page of a comparison in a browser."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_flagperf.commands import main
from tests.screens.browser import DESK, PHONE, TABLET, shown
from tests.stored_runs import faster, run_of
from tests.test_compare import dated

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow
HARDWARE = ("CPU", "CPU", "X9")


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of three runs, one on other hardware, and of twelve runs, the last of them slower."""
    folder = tmp_path_factory.mktemp("runs")
    rng = random.Random(1)
    for number in range(12):
        level = 1.0 if number < 7 else 0.8
        rounds = dated(number, *(level * rng.gauss(1, 0.01) for _ in range(3)))
        run_of(folder / "trend" / f"run2026112106{number:04}", rounds=rounds)
    runs = [
        run_of(folder / f"run2026112107{number:04}", rounds=faster(1.0, 0.99), hardware=chip, fingerprint={"key": chip})
        for number, chip in enumerate(HARDWARE)
    ]
    made = {name: folder / f"{name}.html" for name in ("compared", "trend")}
    assert main(["compare", *map(str, runs), "--ignore-differences", "--html", str(made["compared"])]) == 0
    assert main(["compare", str(folder / "trend"), "--html", str(made["trend"])]) == 1
    return made


@pytest.mark.parametrize(
    ("name", "dark", "width"),
    [("compared", False, PHONE), ("compared", True, DESK), ("trend", False, TABLET), ("trend", True, PHONE)],
)
def test_no_elements_overlap_and_every_chart_is_drawn(
    browser: Browser, pages: dict[str, Path], pictures: Path, name: str, dark: bool, width: int
) -> None:
    with shown(browser, pages[name], width, dark=dark) as seen:
        charts = seen.page.locator("figure.chart").all()
        assert len(charts) >= 3
        for chart in charts:
            chart.scroll_into_view_if_needed()
            chart.locator("canvas").wait_for()
        assert all(seen.painted("figure.chart canvas"))
        assert seen.problems() == []
        seen.picture(pictures / f"{name}-{width}-{'dark' if dark else 'light'}.png")


def test_a_click_hides_a_run(browser: Browser, pages: dict[str, Path]) -> None:
    with shown(browser, pages["compared"]) as seen:
        chart = seen.page.locator("figure.chart", has_text="Training loss").first
        chart.scroll_into_view_if_needed()
        legend = chart.locator(".u-series", has_text="run20261121070001")
        legend.locator("th").click()
        assert "u-off" in (legend.get_attribute("class") or "")
        assert seen.problems() == []
