"""The choice among several images that a vendor has for a case."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_flagperf.catalog.vendor_images import find
from tests.helpers.trees import write

NAMED = {"frame": "maker/frame:any", "frame_2.10": "maker/frame:2.10"}
TOML = "[images] of vendors/acme/vendor.toml"


@pytest.mark.parametrize(
    ("named", "framework", "image"),
    [
        (NAMED, "frame", ("maker/frame:any", TOML, None)),
        (NAMED, "frame_2.10", ("maker/frame:2.10", TOML, None)),  # instead of its Dockerfile
        (NAMED, "frame_2.9", (None, "vendors/acme/images/frame_2.9/Dockerfile", "frame_2.9")),
        (NAMED, "frame_2.8", ("maker/frame:any", f"frame in {TOML}", None)),
        ({}, "frame_2.8", None),  # a Dockerfile is for its own version alone
        ({}, "frame", None),  # a folder without a Dockerfile
    ],
)
def test_an_image_for_exactly_the_version_is_used(
    tmp_path: Path, named: Mapping[str, str], framework: str, image: tuple[str | None, str, str | None] | None
) -> None:
    file = write(tmp_path, "vendors/acme/vendor.toml", '[images]\nframe = "maker/frame:any"\n')
    for name in ("frame_2.9/Dockerfile", "frame_2.10/Dockerfile", "frame/README.md"):
        write(file.parent, f"images/{name}", "")
    found = find(named, file, framework)
    assert (found and (found.name, found.by, found.folder and found.folder.name)) == image
