"""The documentation site: it is built without a warning, its search finds answers, and its pages can be read."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.screens import browser as browsers

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

REPO = Path(__file__).resolve().parents[2]
QUESTIONS: dict[str, dict[str, str]] = tomllib.loads((REPO / "docsite" / "questions.toml").read_text(encoding="utf-8"))
HITS = 3
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning of Sphinx fails the build."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "docsite", f"--to={folder}"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert (done.returncode, "WARNING" in done.stderr) == (0, False), done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1200, "height": 900}, offline=True)
    yield context.new_page()
    context.close()


def found(page: Page, site: Path, language: str, query: str) -> list[str]:
    """The pages that the page of the search lists, best first."""
    address = ((site / "zh" if language == "zh" else site) / "search.html").as_uri()
    if page.url.partition("?")[0] == address:
        page.fill("#site-query", query)
    else:
        page.goto(f"{address}?q={quote(query)}")
    hits: list[str] = page.locator("#site-hits > li").evaluate_all("hits => hits.map(hit => hit.dataset.page)")
    return hits


def test_there_are_enough_questions() -> None:
    assert len(QUESTIONS["en"]) >= 20
    assert len(QUESTIONS["zh"]) >= 5


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_search_finds_the_answers(site: Path, page: Page, language: str) -> None:
    missed = {
        query: (expected, hits)
        for query, expected in QUESTIONS[language].items()
        if expected not in (hits := found(page, site, language, query)[:HITS])
    }
    assert missed == {}


def test_a_query_without_a_match_finds_nothing(site: Path, page: Page) -> None:
    assert found(page, site, "en", "xyzzyqwv") == []
    assert page.locator("#site-found").inner_text().startswith("No page found")
    page.fill("#site-query", "baseline")
    assert page.locator("#site-hits > li").count() > 0


def test_links_of_hits_lead_to_pages(site: Path, page: Page) -> None:
    for language, query in (("en", "baseline"), ("zh", "cluster")):
        found(page, site, language, query)
        links: list[str] = page.locator("#site-hits a").evaluate_all("links => links.map(link => link.href)")
        files = {Path(re.sub(r"^file://|[#?].*$", "", link)) for link in links}
        assert len(files) > 5
        assert [file for file in files if not file.is_file()] == []


@pytest.mark.parametrize("width", [browsers.PHONE, browsers.DESK])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["index", "zh/index", "how-to-vendor", "reference/options", "search", "measuring"])
def test_a_page_fits_and_logs_no_error(
    site: Path,
    browser: Browser,
    pictures: Path,
    name: str,
    width: int,
    dark: bool,
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", offline=True
    )
    shown, errors = context.new_page(), []
    shown.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    shown.on("pageerror", lambda error: errors.append(str(error)))
    shown.goto((site / f"{name}.html").as_uri())
    shown.screenshot(path=pictures / f"site-{name.replace('/', '-')}-{width}{'-dark' if dark else ''}.png")
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    assert errors == []
    context.close()


@pytest.mark.parametrize("name", ["index", "zh/index", "search", "reference/options"])
def test_a_page_passes_the_rules_of_accessibility(site: Path, page: Page, name: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page.goto((site / f"{name}.html").as_uri())
    violations = Axe().run(page).response["violations"]
    assert [(rule["id"], [node["html"] for node in rule["nodes"]][:3]) for rule in violations] == []


def test_both_languages_name_each_other_and_their_own(site: Path) -> None:
    english, chinese = ((site / name).read_text(encoding="utf-8") for name in ("concepts.html", "zh/concepts.html"))
    assert 'lang="en"' in english
    assert 'lang="zh' in chinese
    assert 'href="./zh/concepts.html"' in english
    assert 'href="./../concepts.html"' in chinese
    assert '<a href="../measuring.html" hreflang="en">' in chinese
