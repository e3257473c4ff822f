"""What comes of a round's logs on their way from a host."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from flagperf_driver.node.archive import pack
from pytest_flagperf.cluster import HostError
from pytest_flagperf.round.collect import _unpack


def test_a_link_out_of_the_folder_is_left_out_and_the_logs_come(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here" / "h1"
    there.mkdir()
    (there / "rank0.out.log").write_text("said\n")
    (there / "latest").symlink_to(there / "rank0.out.log")
    (there / "first").symlink_to("rank0.out.log")
    with (tmp_path / "archive").open("w+b") as archive:
        pack(there, archive.fileno())
        archive.seek(0)
        _unpack(archive, here)
    assert sorted(path.name for path in here.iterdir()) == ["first", "rank0.out.log"]
    assert (here / "first").read_text() == "said\n"


def test_what_is_no_archive_is_an_error_of_the_host(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="the logs cannot be unpacked"):
        _unpack(io.BytesIO(b"something else"), tmp_path / "h1")
    assert list(tmp_path.iterdir()) == []
