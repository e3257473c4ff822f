"""The choice among several images that a vendor has for a case."""

from pathlib import Path

import pytest

from pytest_flagperf.catalog.vendor_images import find

NAMED = {"frame": "maker/frame:any", "frame_2.10": "maker/frame:2.10"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write a vendor.toml with ``NAMED``, and the folder of a version that it does not name."""
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
def test_an_image_for_exactly_the_version_is_used(file: Path, framework: str, name: str | None, by: str) -> None:
    image = find(NAMED, file, framework)
    assert image is not None
    assert (image.name, image.by) == (name, by)
    assert image.folder == (None if name else file.parent / "images" / framework)


def test_a_dockerfile_is_for_its_own_name_only(file: Path) -> None:
    assert find({}, file, "frame") is None
    assert find({}, file, "frame_2.8") is None
    (file.parent / "images" / "frame").mkdir()
    assert find({}, file, "frame") is None, "a folder without a Dockerfile"


def test_a_named_image_is_used_instead_of_a_dockerfile(file: Path) -> None:
    (file.parent / "images" / "frame_2.10").mkdir()
    (file.parent / "images" / "frame_2.10" / "Dockerfile").write_text("FROM x\n")
    image = find(NAMED, file, "frame_2.10")
    assert image is not None
    assert image.name == "maker/frame:2.10"
