"""Take the picture of a report for the README and the site: ``python -m docsite.picture RUN``."""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

from docsite.pages import REPO
from pytest_flagperf.commands import main as flagperf
from tests.screens import browser as browsers

PICTURE = REPO / "docs" / "images" / "report.png"
WIDTH, HEIGHT = 1200, 1250
COLOURS = 128
MOST_BYTES = 150_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m docsite.picture", description=__doc__)
    parser.add_argument("run", metavar="RUN", type=Path, help="a run directory")
    run: Path = parser.parse_args().run
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        if code := flagperf(["report", str(run), f"--to={page}"]):
            return code
        with browsers.browser() as browser, browsers.shown(browser, page, WIDTH) as shown:
            content = shown.page.screenshot(clip={"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT}, full_page=True)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    Image.open(io.BytesIO(content)).convert("RGB").quantize(COLOURS).save(PICTURE, optimize=True)
    size = PICTURE.stat().st_size
    print(f"{PICTURE.relative_to(REPO)}: {size:,} bytes")
    return 0 if size <= MOST_BYTES else f"expected at most {MOST_BYTES:,} bytes"  # type: ignore[return-value]


if __name__ == "__main__":
    sys.exit(main())
