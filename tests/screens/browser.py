"""Open a page in headless Chromium and find its problems: console errors, network requests, overlapping elements."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHECKS = Path(__file__).with_name("checks.js")
PHONE, TABLET, DESK = 400, 800, 1400
MAX_PICTURE_HEIGHT = 8000


def program() -> str | None:
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


def missing() -> list[str]:
    """Return why no browser can be started; nothing if a browser is installed."""
    return [] if program() else [f"no {', '.join(PROGRAMS)} on the PATH; apt-get install chromium"]


@contextmanager
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    # Chromium's sandbox does not work for root, and all pages are our own.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program(), args=arguments)
        try:
            yield started
        finally:
            started.close()


@dataclass
class Shown:
    """An open page; ``complaints`` are the errors since it was opened."""

    page: Page
    file: Path
    complaints: list[str] = field(default_factory=list)

    def problems(self) -> list[str]:
        """Return the errors, and the elements that are wider than the window or overlap others."""
        return [*self.complaints, *self.page.evaluate("flagperfChecks.layout()")]

    def painted(self, selector: str) -> list[bool]:
        painted: list[bool] = self.page.evaluate("selector => flagperfChecks.painted(selector)", selector)
        return painted

    def read_through(self, selector: str, content: str) -> int:
        """Scroll to each visible element; return how many do not get the expected content."""
        script = "([selector, content]) => flagperfChecks.readThrough(selector, content)"
        missing: int = self.page.evaluate(script, [selector, content])
        return missing

    def picture(self, path: Path) -> Path:
        """Take a picture of the page from its top, up to the maximum height."""
        size = self.page.evaluate("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
        clip: Any = {"x": 0, "y": 0, "width": size[0], "height": min(size[1], MAX_PICTURE_HEIGHT)}
        self.page.screenshot(path=path, full_page=True, clip=clip)
        return path


@contextmanager
def shown(browser: Browser, file: Path, width: int = DESK, *, dark: bool = False) -> Iterator[Shown]:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", offline=True
    )
    page = context.new_page()
    page.set_default_timeout(60_000)  # on a busy machine the charts of many cases take long
    seen = Shown(page, file)
    page.on("console", lambda message: _console(seen.complaints, message.type, message.text))
    page.on("pageerror", lambda error: seen.complaints.append(f"an error in a script: {error}"))
    page.route("**/*", lambda route: _route(seen, route))
    page.add_init_script(path=CHECKS)
    try:
        page.goto(file.as_uri())
        yield seen
    finally:
        context.close()


def _console(complaints: list[str], kind: str, text: str) -> None:
    if kind in ("error", "warning"):
        complaints.append(f"{kind} on the console: {text}")


def _route(seen: Shown, route: Route) -> None:
    if route.request.url.partition("#")[0] == seen.file.as_uri():  # a standalone page makes no other request
        route.continue_()
    else:
        seen.complaints.append(f"the page requests {route.request.url}")
        route.abort()


def named(parts: Sequence[object]) -> str:
    return "-".join(map(str, parts)) + ".png"
