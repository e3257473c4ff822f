"""The documentation site: it is built without a warning, its search finds answers, and its pages can be read."""

from __future__ import annotations

import itertools
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
HITS, LEAST_FOUND = 3, 35
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
    """The pages that the search lists, best first."""
    root = site / "zh" if language == "zh" else site
    page.goto(f"{(root / 'search.html').as_uri()}?q={quote(query)}")
    page.locator(".search-summary:not(:empty)").wait_for()
    links: list[str] = page.locator("#search-results li > a").evaluate_all("links => links.map(link => link.href)")
    files = [Path(re.sub(r"^file://|[#?].*$", "", link)) for link in links]
    assert [file for file in files if not file.is_file()] == []
    return list(dict.fromkeys(file.relative_to(root).with_suffix("").as_posix() for file in files))


def test_the_search_finds_the_answers(site: Path, page: Page) -> None:
    """Sphinx's search finds only pages with every word, and only those of its language: not each question's page."""
    missed = {
        query: (expected, hits)
        for language, questions in QUESTIONS.items()
        for query, expected in questions.items()
        if expected not in (hits := found(page, site, language, query)[:HITS])
    }
    assert sum(map(len, QUESTIONS.values())) - len(missed) >= LEAST_FOUND, missed
    assert found(page, site, "en", "xyzzyqwv") == []
    for query in ("offline", "environment variable", "p_whole", "efficiency"):
        hits = found(page, site, "en", query)
        assert hits[0] == QUESTIONS["en"][query]
        of_vendors_and_suites = [re.match("(vendors|suites)/", hit) is not None for hit in hits]
        assert of_vendors_and_suites == sorted(of_vendors_and_suites), f"{query}: these pages come last"


def test_pages_fit_and_log_no_error(site: Path, browser: Browser, pictures: Path) -> None:
    errors: list[str] = []
    for width, dark in itertools.product((browsers.PHONE, browsers.DESK), (False, True)):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", offline=True
        )
        shown = context.new_page()
        shown.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        shown.on("pageerror", lambda error: errors.append(str(error)))
        for name in ("index", "zh/index", "how-to-vendor", "reference/options", "search", "measuring"):
            shown.goto((site / f"{name}.html").as_uri())
            shown.screenshot(path=pictures / f"site-{name.replace('/', '-')}-{width}{'-dark' if dark else ''}.png")
            assert shown.evaluate("document.documentElement.scrollWidth") <= width, name
        assert errors == []
        context.close()


def test_pages_pass_the_rules_of_accessibility(site: Path, page: Page) -> None:
    from axe_playwright_python.sync_playwright import Axe

    for name in ("index", "zh/index", "search", "reference/options"):
        page.goto((site / f"{name}.html").as_uri())
        violations = Axe().run(page).response["violations"]
        assert [(rule["id"], [node["html"] for node in rule["nodes"]][:3]) for rule in violations] == [], name


def test_both_languages_name_each_other_and_their_own(site: Path) -> None:
    english, chinese = ((site / name).read_text(encoding="utf-8") for name in ("concepts.html", "zh/concepts.html"))
    assert 'lang="en"' in english
    assert 'lang="zh' in chinese
    assert 'href="./zh/concepts.html"' in english
    assert 'href="./../concepts.html"' in chinese
    assert '<a href="../measuring.html" hreflang="en">' in chinese
