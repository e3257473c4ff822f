"""The logs of a round on their way from a host."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flagperf_driver.node.agent.archive import GIB, LogLimits, pack
from flagperf_driver.node.folder import SUMMARY
from pytest_flagperf.engines.agents.collect import Collected, collect
from pytest_flagperf.engines.agents.unpack import DEFAULT_LIMITS, unpack
from pytest_flagperf.hosts import HostError
from pytest_flagperf.hosts.local import LocalHost


def test_links_are_left_out_and_named_and_the_logs_are_fetched(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here" / "h1"
    (there / "deep").mkdir(parents=True)
    (there / "rank0.out.log").write_text("a line\n")
    (there / "deep" / ("long" * 50)).write_text("a name in an extended header\n")
    (there / "latest").symlink_to(there / "rank0.out.log")
    (there / "first").symlink_to("rank0.out.log")
    with (tmp_path / "archive").open("w+b") as archive:
        facts = pack(there, archive.fileno(), DEFAULT_LIMITS)
        archive.seek(0)
        left_out = unpack(archive, here, DEFAULT_LIMITS)
    assert facts["files"] == 2
    assert sorted(path.name for path in here.rglob("*")) == ["deep", "long" * 50, "rank0.out.log"]
    assert (here / "rank0.out.log").read_text() == "a line\n"
    assert left_out == ("2 entries of the logs left out (symbolic link): 'first', 'latest'",)


def test_a_rank_may_make_a_folder_with_the_name_of_the_summary(tmp_path: Path) -> None:
    folder = tmp_path / "h1_noderank0"
    (folder / SUMMARY).mkdir(parents=True)
    agents: Any = SimpleNamespace(all=[SimpleNamespace(folder=folder, host=LocalHost())])
    assert collect(agents, tmp_path, failed=True) == Collected()
    (folder / SUMMARY).rmdir()
    (folder / SUMMARY).write_text("{}")
    collect(agents, tmp_path, failed=True)
    assert list(folder.iterdir()) == []


def test_an_invalid_archive_is_an_error_of_the_host(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="the logs cannot be unpacked"):
        unpack(io.BytesIO(b"something else"), tmp_path / "h1", DEFAULT_LIMITS)
    assert list(tmp_path.iterdir()) == []


def test_an_agent_does_not_pack_more_than_the_limits_allow(tmp_path: Path) -> None:
    """Packing the zeros of a sparse file would take too long."""
    there = tmp_path / "there"
    there.mkdir()
    with (there / "core").open("wb") as file:
        file.truncate(1 << 40)
    with (tmp_path / "archive").open("w+b") as archive:
        refused = pack(there, archive.fileno(), DEFAULT_LIMITS)
        assert archive.seek(0, io.SEEK_END) == 0
        (there / "core").unlink()
        (there / "log").write_text("a line\n")
        assert "refused" not in pack(there, archive.fileno(), LogLimits(7, 1))
    assert refused == {
        "refused": "the logs are larger than 4 GiB; to fetch them, set in [cluster] of flagperf.toml a larger"
        " max_log_gib"
    }
    assert LogLimits(GIB, 7).refusal(0, 8) == (
        "the logs have more than 7 files and folders; to fetch them, set in [cluster] of flagperf.toml a larger"
        " max_log_entries"
    )
