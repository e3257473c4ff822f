"""The logs of a round on their way from a host."""

import base64
import hashlib
import io
import json
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flagperf_driver.layout import MONITORS
from flagperf_driver.node.agent.archive import GIB, LogLimits, pack
from flagperf_driver.node.folder import SUMMARY
from flagperf_driver.node.logs.summary import Request
from flagperf_driver.target import Target
from pytest_flagperf.engines.agents import collect as collect_module
from pytest_flagperf.engines.agents.agents import Agents, Greeted, HostAgent
from pytest_flagperf.engines.agents.collect import Collected, collect
from pytest_flagperf.engines.agents.unpack import DEFAULT_LIMITS, LogsTooLarge, unpack, unpack_summary
from pytest_flagperf.hosts import HostError, Message
from pytest_flagperf.hosts.local import LocalHost
from tests.engines.agents.test_agents import FakeChannel


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


def test_of_a_summary_only_files_with_its_names_are_written(tmp_path: Path) -> None:
    def unpacked(content: object, limits: LogLimits = DEFAULT_LIMITS) -> list[str]:
        packed = zlib.compress(json.dumps(content).encode())
        unpack_summary("h1", io.BytesIO(packed), tmp_path / "here" / "h1", limits)
        return sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())

    texts = {SUMMARY: "{}", "../evil": "x", "/tmp/evil": "x", "rank0.out.log": "x"}
    for wrong in ([texts], {}, {SUMMARY: 1}, {**texts, MONITORS: None}):
        with pytest.raises(HostError, match=r"h1 sent an invalid reply: the summary of the logs"):
            unpacked(wrong)
    with pytest.raises(LogsTooLarge, match="larger than 10 bytes"):
        unpacked(texts, LogLimits(max_bytes=10))
    with pytest.raises(HostError, match="the logs cannot be unpacked"):
        unpack_summary("h1", io.BytesIO(b"something else"), tmp_path / "here" / "h1", DEFAULT_LIMITS)
    assert list((tmp_path / "here").iterdir()) == []
    assert unpacked({**texts, MONITORS: "\ud800"}) == [f"here/h1/{MONITORS}", f"here/h1/{SUMMARY}"]


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


def test_a_host_whose_summary_does_not_arrive_is_asked_again(tmp_path: Path) -> None:
    packed = zlib.compress(json.dumps({SUMMARY: "{}"}).encode())
    refusal = {"type": "error", "sentence": "not yet"}
    chunk = {
        "type": "chunk", "offset": 0, "size": len(packed), "sha256": hashlib.sha256(packed).hexdigest(),
        "data": base64.b64encode(packed).decode(),
    }  # fmt: skip

    def agent(name: str, *answers: Message) -> HostAgent:
        made = HostAgent(LocalHost(name), 0, tmp_path, FakeChannel(), 5.0, state=Greeted("/there"))
        for answer in answers:
            made.answers.put(answer)
        return made

    good, late, never = agent("h1", chunk), agent("h2", refusal, chunk), agent("h3", *[refusal] * 4)
    request = Request([0], Target("accuracy", "higher", "fraction"))
    missing = collect_module._fetch_summaries(Agents(), dict.fromkeys([good, late, never], request))
    assert [one.host for one in missing] == ["h3"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["h1_noderank0", "h2_noderank0"]
