"""Rounds whose hosts sum up their own files: the same figures, and a check of the sums."""

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from flagperf_driver.layout import DEVICE_SERIES, rank_log
from flagperf_driver.node.agent.archive import pack
from flagperf_driver.node.folder import SUMMARY
from flagperf_driver.node.logs.summary import SHORT_FILES, Request, summarize
from pytest_flagperf.engines.agents import collect
from pytest_flagperf.engines.agents.unpack import DEFAULT_LIMITS
from pytest_flagperf.hosts.host_pool import HostPool
from pytest_flagperf.results.logs import host_summaries, monitors
from pytest_flagperf.results.measured.measure import StoredRound, measure, measured
from pytest_flagperf.results.measured.outcome import Outcome
from pytest_flagperf_page import sampled_charts
from tests.helpers.recording import Sampling, Training, write

SAMPLING = Sampling(
    devices=4,
    throttle=lambda device, share: "hw_thermal+sw_power_cap" if device == 3 else "none",
    left_out=lambda share: 0.3 < share < 0.85,
)
HOSTS = tuple(
    {
        "name": f"h{number}",
        "address": f"10.0.0.{number}",
        "clock_offset_s": offset_s,
        "log_dir": "/tmp/rounds/one",
        "code_root": "/tmp/code",
    }
    for number, offset_s in ((1, 0.0), (2, 0.25), (3, -1.125))
)
TRAINING = Training("many", nproc=4, nnodes=3, hosts=HOSTS, sampling=SAMPLING, token="b2")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(TRAINING, tmp_path_factory.mktemp("whole") / "round1")


def sum_up(folder: Path, request: Request) -> dict[str, Any]:
    order = json.loads(json.dumps(asdict(request)))
    body: dict[str, Any] = json.loads(json.dumps(summarize(folder, Request.from_json(order)), allow_nan=False))
    return body


def summed_up(whole: Path, to: Path, keep: tuple[int, ...] = (0,)) -> Path:
    """Return the round as it is if all hosts but these summed up their files, and these did both."""
    to.mkdir()
    of = StoredRound(whole)
    for path in whole.iterdir():
        if path.is_file():
            (to / path.name).write_bytes(path.read_bytes())
    for host in of.plan.hosts:
        names = [path.name for path in (whole / host.folder).iterdir()]
        (to / host.folder).mkdir()
        for name in names if host.noderank in keep else {*SHORT_FILES} & {*names}:
            (to / host.folder / name).write_bytes((whole / host.folder / name).read_bytes())
        body = sum_up(whole / host.folder, of.summary_request(host.noderank))
        (to / host.folder / SUMMARY).write_text(json.dumps(body))
    return to


def figures(outcome: Outcome) -> Outcome:
    return replace(outcome, logs=(), warnings=tuple(text for text in outcome.warnings if "stay there" not in text))


@pytest.mark.parametrize("training", [TRAINING, replace(TRAINING, throughput_only=True)], ids=["training", "rate"])
def test_the_figures_are_those_of_the_whole_files(training: Training, tmp_path: Path) -> None:
    whole = write(training, tmp_path / "whole" / "round1")
    expected, got = measure(whole), measure(summed_up(whole, tmp_path / "round1"))
    assert expected.ok
    assert got.ok
    assert figures(got) == figures(expected)
    assert "gap" in {warning.kind for warning in got.validity_warnings}
    assert [Path(log).name for log in got.logs] == [rank_log(rank) for rank in range(4)]
    assert (
        "the logs and series of 2 hosts stay there (flagperf show --fetch-logs fetches them); those of 1 host were"
        " compared with their summaries" in got.warnings
    )


def test_a_rank_that_did_not_finish_is_reported_with_its_last_line(tmp_path: Path) -> None:
    cut = replace(TRAINING, text=lambda rank, lines: [*lines[:-1], "RuntimeError: no"] if rank == 10 else lines)
    whole = write(cut, tmp_path / "whole" / "round1")
    expected, got = measure(whole), measure(summed_up(whole, tmp_path / "round1"))
    assert figures(got).failures == expected.failures
    assert got.failures[0].last_lines[-1] == "RuntimeError: no"


def test_charts_are_drawn_of_the_summaries(whole: Path, tmp_path: Path) -> None:
    round_dir = summed_up(whole, tmp_path / "round1")
    charts = {chart.title: chart for chart in sampled_charts.devices(monitors.read(round_dir)) if chart}
    expected = {chart.title: chart for chart in sampled_charts.devices(monitors.read(whole)) if chart}
    assert charts.keys() == expected.keys()
    assert len(charts["Device power"].lines) == len(expected["Device power"].lines)
    samples = monitors.read(round_dir)["h2_noderank1"]
    assert samples.throttle == monitors.read(whole)["h2_noderank1"].throttle
    with pytest.raises(ValueError, match="no figures of the samples from 1 to 2"):
        samples.window(1, 2)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("", ""),
        ("longer", f"summed up: {rank_log(4)} is not the file that was summed up"),
        ("missing", f"summed up: {DEVICE_SERIES} is missing"),
    ],
)
def test_a_host_keeps_logs_that_are_not_those_that_it_summed_up(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, problem: str
) -> None:
    (tmp_path / "case").mkdir()
    directory, there = summed_up(whole, tmp_path / "case" / "round1"), tmp_path / "there"
    shutil.copytree(whole / "h2_noderank1", there)
    if change == "longer":
        with (there / rank_log(4)).open("a") as log:
            log.write("one more line\n")
    elif change == "missing":
        (there / DEVICE_SERIES).unlink()

    def archive(*_: object) -> IO[bytes]:
        file = (tmp_path / "archive").open("w+b")
        pack(there, file.fileno(), DEFAULT_LIMITS)
        file.seek(0)
        return file

    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(collect, "_archive", archive)
    monkeypatch.setattr(collect, "_next", lambda *_: {})
    channel = SimpleNamespace(send=sent.append, close=lambda: None)
    monkeypatch.setattr(collect, "_agent_channel", lambda *_: channel)
    host: Any = SimpleNamespace(name="h2", reconnect=lambda: None)
    late = collect.LateLogs(lambda _: HostPool((host,)), DEFAULT_LIMITS)
    ((is_fetched, sentence),) = late.fetch_kept(directory, ["h2"])
    assert is_fetched == (not change)
    assert sentence.endswith(problem)
    assert sent == [{"op": "leave", "remove": not change}]


def edit_summary(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    body = json.loads((folder / SUMMARY).read_text())
    edit(body)
    (folder / SUMMARY).write_text(json.dumps(body))


def faster(body: dict[str, Any]) -> None:
    body["ranks"][2]["finished"]["p_core"] *= 1.001


def cooler(body: dict[str, Any]) -> None:
    body["windows"][0]["devices"][1]["quantities"]["temperature"]["highest"] -= 1


def shorter(body: dict[str, Any]) -> None:
    body["files"][rank_log(5)]["bytes"] -= 1


@pytest.mark.parametrize("edit", [faster, cooler, shorter])
def test_a_summary_that_differs_from_its_files_fails_the_round(
    whole: Path, tmp_path: Path, edit: Callable[[dict[str, Any]], object]
) -> None:
    round_dir = summed_up(whole, tmp_path / "round1", keep=(0, 1))
    assert measure(round_dir).ok  # the control
    edit_summary(round_dir / "h2_noderank1", edit)
    (failure,) = measure(round_dir).failures
    assert (failure.kind, failure.host) == ("log", "h2")
    assert re.search(r"round 1: h2: its summary differs from its files: .* by the files ", failure.sentence)


def test_numbers_that_only_the_slower_parser_reads_are_read(whole: Path, tmp_path: Path) -> None:
    round_dir = summed_up(whole, tmp_path / "round1")
    edit_summary(
        round_dir / "h2_noderank1", lambda body: body["ranks"][0]["totals"].update(longest_evaluation_s=math.nan)
    )
    assert "NaN" in (round_dir / "h2_noderank1" / SUMMARY).read_text()
    summary = host_summaries.read(round_dir / "h2_noderank1")
    assert summary is not None
    assert math.isnan(summary.ranks[0].totals.longest_evaluation_s)


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda body: body["ranks"].pop(), r"it has the ranks \[4, .*; expected \[4, "),
        (lambda body: body["ranks"][0].update(path="/etc/passwd"), "path is '/etc/passwd'"),
        (lambda body: body["ranks"][0]["totals"].update(step=10**30), r"step is 1e\+30; expected a whole number"),
        (lambda body: body.pop("windows"), "windows is missing"),
        (lambda body: body["windows"].pop(), "its windows lack the one of the whole round"),
        (lambda body: body.update(files={DEVICE_SERIES: body["files"][DEVICE_SERIES]}), f"lack {rank_log(4)}, which"),
    ],
)
def test_a_summary_that_is_not_one_is_an_error_of_the_round(
    whole: Path, tmp_path: Path, edit: Callable[[dict[str, Any]], object], problem: str
) -> None:
    round_dir = summed_up(whole, tmp_path / "round1")
    edit_summary(round_dir / "h2_noderank1", edit)
    outcome = measured(round_dir)
    assert not outcome.ok
    assert re.search(f"h2_noderank1/{SUMMARY}: .*{problem}", outcome.failures[0].sentence)
