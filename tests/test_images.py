"""Of several images that a vendor may have for a case, one is taken, and it is said which."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_flagperf.catalog.images import find, unused

NAMED = {"frame": "maker/frame:any", "frame_2.10": "maker/frame:2.10"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A vendor.toml whose lines are those of ``NAMED``, beside the folder of a version that it does not name."""
    folder = tmp_path / "vendors" / "acme"
    (folder / "images" / "frame_2.9").mkdir(parents=True)
    (folder / "images" / "frame_2.9" / "Dockerfile").write_text("FROM x\n")
    (folder / "vendor.toml").write_text('[images]\nframe = "maker/frame:any"\n"frame_2.10" = "maker/frame:2.10"\n')
    return folder / "vendor.toml"


@pytest.mark.parametrize(
    ("framework", "name", "by"),
    [
        ("frame", "maker/frame:any", "[images] of vendors/acme/vendor.toml"),
        ("frame_2.10", "maker/frame:2.10", "[images] of vendors/acme/vendor.toml"),
        ("frame_2.9", None, "vendors/acme/images/frame_2.9/Dockerfile"),
        ("frame_2.8", "maker/frame:any", "frame in [images] of vendors/acme/vendor.toml"),
    ],
)
def test_what_is_for_exactly_that_version_wins(file: Path, framework: str, name: str | None, by: str) -> None:
    found = find(NAMED, file, framework)
    assert found is not None
    assert (found.name, found.by) == (name, by)
    assert found.folder == (None if name else file.parent / "images" / framework)
    assert unused(NAMED, file, framework, ["frame"]) == []


def test_a_dockerfile_is_for_its_own_name_only(file: Path) -> None:
    assert find({}, file, "frame") is None
    assert find({}, file, "frame_2.8") is None
    (file.parent / "images" / "frame").mkdir()
    assert find({}, file, "frame") is None, "a folder without a Dockerfile"


def test_of_a_name_and_a_dockerfile_for_the_same_the_name_wins_and_that_is_said(file: Path) -> None:
    (file.parent / "images" / "frame_2.10").mkdir()
    (file.parent / "images" / "frame_2.10" / "Dockerfile").write_text("FROM x\n")
    found = find(NAMED, file, "frame_2.10")
    assert found is not None
    assert found.name == "maker/frame:2.10"
    (said,) = unused(NAMED, file, "frame_2.10", ["frame"])
    assert said == f"{file}:3: maker/frame:2.10 is used; vendors/acme/images/frame_2.10 is not built"


def test_a_framework_that_no_suite_is_in_is_told_with_what_was_meant(file: Path) -> None:
    near, _ = unused(NAMED, file, "frame", ["frames"])
    assert near == f"{file}:2: images.frame: no suite uses this framework; did you mean frames?"
