"""Take the pictures of docs/images: of a run of ``make bench``, of a training that failed, and of made-up nights.

    make bench BENCH=--reports=pictures/reports
    .venv/bin/python -m pytest suites/gpt_oss_20b --nodes=1x1 --set=learning_rate=0.0 --reports=pictures/reports
    .venv/bin/flagperf report --all pictures/reports
    .venv/bin/python -m tools.pictures --nights=pictures/nights
    cd pictures/nights
    flagperf compare run20261113020000 run20261124020000 --html ../compared.html
    cd ../..
    .venv/bin/python -m tools.pictures pictures/reports/RUN/report.html docs/images/report.png --height=650
    .venv/bin/python -m tools.pictures pictures/compared.html docs/images/history.png --height=345 --at=History

``PAGE PICTURE`` takes a picture of a page. ``--nights=FOLDER`` writes made-up runs of 21 nights, for the pictures of a
comparison and of a history: one model is slower from a night on, another was faster for some nights.
"""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import replace
from pathlib import Path

from pytest_flagperf.results.tables import store
from pytest_flagperf.results.tables.store import RunInfo
from tests.helpers import many_cases
from tests.helpers.many_cases import PlannedCase
from tests.helpers.recording import Training
from tests.helpers.stored_runs import finish, store_rounds
from tests.screens import browser

WIDTH = 1280
NIGHTS = range(4, 25)
"""The days of November 2026."""
FIRST_MS = 1_793_757_600_000
"""2026-11-04, 02:00 UTC."""
DAY_MS = 24 * 3600 * 1000
CASES = (
    PlannedCase(0, "bert", "A100", 1, 1, 3, "well"),
    PlannedCase(1, "bert", "A100", 1, 8, 3, "well"),
    PlannedCase(2, "glm", "A100", 1, 8, 1, "well"),
    PlannedCase(3, "resnet50", "MX300", 1, 8, 3, "well"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("page", type=Path, nargs="?", help="the HTML file")
    parser.add_argument("picture", type=Path, nargs="?", help="the PNG file to write")
    parser.add_argument("--height", type=int, default=1000, help="height of the picture (default: 1000)")
    parser.add_argument("--at", default="", metavar="TEXT", help="begin at the visible heading with this text")
    parser.add_argument("--nights", type=Path, metavar="FOLDER", help="write made-up runs into this folder")
    options = parser.parse_args()
    if options.nights:
        for night in NIGHTS:
            write_night(options.nights / f"run202611{night:02}020000", night)
    elif options.page and options.picture:
        take(options.page.resolve(), options.picture, options.height, options.at)
    else:
        parser.error("expected PAGE and PICTURE, or --nights=FOLDER")


def take(page: Path, picture: Path, height: int, at: str) -> None:
    """Take a picture of a page, from a heading in an opened case on or from its top."""
    with browser.browser() as started, browser.shown(started, page, WIDTH) as seen:
        top = 0
        if at:
            for case in seen.page.locator("details.case:not([open]) > summary").all()[:1]:
                case.click()
            heading = seen.page.locator(f"h2:visible:text-is('{at}'), h3:visible:text-is('{at}')").first
            heading.scroll_into_view_if_needed()
            seen.read_through("figure.chart", "canvas")
            top = int(heading.evaluate("one => one.getBoundingClientRect().top + scrollY")) - 8
        seen.page.wait_for_timeout(500)
        whole = int(seen.page.evaluate("document.documentElement.scrollHeight"))
        clip = {"x": 0, "y": top, "width": WIDTH, "height": min(height, whole - top)}
        seen.page.screenshot(path=picture, full_page=True, clip=clip)  # type: ignore[arg-type]


def write_night(run_dir: Path, night: int) -> None:
    """Write the run of a night; the last one lacks a case."""
    begun = FIRST_MS + (night - NIGHTS[0]) * DAY_MS
    for case in CASES[: -1 if night == NIGHTS[-1] else None]:
        rounds = (_round(case, number, night, begun) for number in range(1, case.rounds + 1))
        for outcome in store_rounds(run_dir / case.case.replace(":", "_"), *rounds):
            folder = run_dir / case.case.replace(":", "_") / f"round{outcome.round}"
            store.save_outcome(folder, replace(outcome, machine={**outcome.machine, "commit": _digest(str(night))}))
    finish(run_dir, RunInfo(("pytest", "suites"), {"pytest-flagperf": "0.1.0"}, begun, begun + 7_200_000, 0))


def _round(case: PlannedCase, number: int, night: int, begun: int) -> Training:
    training = many_cases.training(case, number)
    noise = int(_digest(f"{night} {case.number} {number}")[:4], 16) / 0xFFFF - 0.5
    step_s = training.step_s * (1 + 0.02 * noise) / _speed(case.model, case.nproc, night)
    return replace(training, step_s=step_s, started_ms=begun + 1000 * (case.number * 400 + number * 130))


def _digest(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _speed(model: str, cards: int, night: int) -> float:
    """BERT on eight cards is slower from the 15th on; GLM was faster from the 11th to the 17th."""
    if (model, cards) == ("bert", 8):
        return 0.92 if night >= NIGHTS[11] else 1.0
    return 1.06 if model == "glm" and NIGHTS[7] <= night < NIGHTS[14] else 1.0


if __name__ == "__main__":
    main()
