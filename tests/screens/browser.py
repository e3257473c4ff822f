"""A page in headless Chromium, and what is wrong with it: complaints, requests, things that lie over each other."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request, Route

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHECKS = Path(__file__).with_name("checks.js")
PHONE, DESK = 400, 1400
HEIGHT = 900
HIGHEST_PICTURE = 8000


def program() -> str | None:
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


def missing() -> str | None:
    """Why there is no browser; None where there is one."""
    return None if program() else f"none of {', '.join(PROGRAMS)} is on the PATH: apt-get install chromium"


@contextmanager
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    # Root may not use Chromium's sandbox, and all it is shown was made here.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program(), args=arguments)
        try:
            yield started
        finally:
            started.close()


@dataclass
class Shown:
    """An open page; ``complaints`` is all that went wrong since it was opened."""

    page: Page
    file: Path
    complaints: list[str] = field(default_factory=list)

    def laid_out_badly(self) -> list[str]:
        """What is wider than the window, or over something else, as it is shown now."""
        found: list[str] = self.page.evaluate("flagperfChecks.layout()")
        return found

    def problems(self) -> list[str]:
        return [*self.complaints, *self.laid_out_badly()]

    def painted(self, selector: str) -> list[bool]:
        """Of each such canvas, whether anything is drawn on it."""
        found: list[bool] = self.page.evaluate("selector => flagperfChecks.painted(selector)", selector)
        return found

    def read_through(self, selector: str, holds: str) -> int:
        """Scroll to each that is visible; how many then do not hold what they are to hold."""
        missing: int = self.page.evaluate("([of, holds]) => flagperfChecks.readThrough(of, holds)", [selector, holds])
        return missing

    def picture(self, path: Path) -> Path:
        """From the page's top; a very long page only as far as a picture may go."""
        size = self.page.evaluate("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
        clip: Any = {"x": 0, "y": 0, "width": size[0], "height": min(size[1], HIGHEST_PICTURE)}
        self.page.screenshot(path=path, full_page=True, clip=clip)
        return path


@contextmanager
def shown(browser: Browser, file: Path, width: int = DESK, *, dark: bool = False) -> Iterator[Shown]:
    """The file as somebody sees it who opens it from disk, without a network."""
    context = browser.new_context(
        viewport={"width": width, "height": HEIGHT}, color_scheme="dark" if dark else "light", offline=True
    )
    page = context.new_page()
    page.set_default_timeout(60_000)  # beside other work a page of 100 cases needs a while for its charts
    seen = Shown(page, file)
    page.on("console", lambda said: _console(seen.complaints, said.type, said.text))
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
    if _itself(seen.file, route.request):
        route.continue_()
    else:
        seen.complaints.append(f"the page asks for {route.request.url}")
        route.abort()


def _itself(file: Path, request: Request) -> bool:
    """A page that stands alone asks for nothing but itself; what lies within it is never routed."""
    return request.url.partition("#")[0] == file.as_uri()


def named(parts: Sequence[object]) -> str:
    """A picture's name."""
    return "-".join(map(str, parts)) + ".png"
