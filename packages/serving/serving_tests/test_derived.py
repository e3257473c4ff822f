"""The figures of a point follow from the stored requests alone, and from the monitors' samples of its time."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flagperf_driver.node.logs.points import MeasuredPoint
from flagperf_driver.node.logs.samples import Samples, Series
from pytest_flagperf.stored import FormatError
from pytest_flagperf_serving import requests
from pytest_flagperf_serving.derived import derived
from pytest_flagperf_serving.verdicts import served
from serving_tests.outcomes import outcome_of

CONFIG = {"server_ttft_s": 0.5, "server_tpot_s": 0.1, "interactive_ttft_s": 0.1, "interactive_tpot_s": 0.1}
PLAN: Any = SimpleNamespace(config=CONFIG, cards=2, host=lambda _: SimpleNamespace(clock_offset_s=100.0))
START = MeasuredPoint("start", {}, {"client_rate": 100.0})


def request(sent: float, *times: float, **more: Any) -> dict[str, Any]:
    known = {"request": 1, "prompt": 6, "judged": False, "tokens": [1] * len(times), "problem": ""}
    return {**known, "sent": sent, "times": times, "ended": times[-1] if times else None, **more}


def write(folder: Path, point: str, lines: list[dict[str, Any]], limits: str = "") -> None:
    head = {"point": point, "begin_s": 1100.0, "seconds": 10.0, "limits": limits}
    with gzip.open(folder / f"rank0.{point[0]}.requests.jsonl.gz", "wt") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in (head, *lines))


def figures(folder: Path, *points: MeasuredPoint, **samples: Samples) -> list[dict[str, float]]:
    return [dict(point.figures) for point in derived((START, *points), PLAN, folder, samples)[1:]]


def users(figures: dict[str, float] | None = None) -> MeasuredPoint:
    return MeasuredPoint("2 at once", {"concurrency": 2}, figures or {})


def test_the_figures_are_those_of_the_requests_and_not_of_the_log(tmp_path: Path) -> None:
    warm_up, late = request(-1.0, -0.5, 0.5), request(9.0, 9.5, 10.5, ended=None)
    write(tmp_path, "2 at once", [warm_up, request(0.0, 0.2, 0.3), request(1.0, 1.4, 1.6, judged=True), late])
    logged = users({"output_rate": 1e6, "ttft_p50": 1e-6, "server_memory": 5.0})
    (got,) = figures(tmp_path, logged)
    assert got["server_memory"] == 5.0, "what only the host knows"
    assert got["output_rate"] == pytest.approx(0.6), "the tokens within the measurement, whatever their request"
    assert got["device_rate"] == pytest.approx(0.3)
    assert got["total_rate"] == pytest.approx((6 + 3 * 6) / 10 / 2)
    assert (got["ttft_p50"], got["ttft_p99"]) == pytest.approx((0.2, 0.4))
    assert (got["tpot_p50"], got["itl_p99"]) == pytest.approx((0.1, 0.2))
    assert got["user_rate"] == pytest.approx(1 / 0.15)
    assert got["repeated_speed"] == pytest.approx(0.5)
    assert got["within_server"] == 0.5, "a time for a token is beyond"
    assert "within_interactive" not in got
    assert got["client_load"] == pytest.approx(0.006)
    (tmp_path / "rank0.2.requests.jsonl.gz").unlink()
    assert figures(tmp_path, logged) == [{"server_memory": 5.0}]


def test_the_highest_rate_is_below_all_that_are_beyond(tmp_path: Path) -> None:
    good, slow = [request(1.0, 1.05, 1.1)], [request(1.0, 1.3, 1.35)]
    failed = [request(1.0, ended=2.0, problem="refused")]
    rates = {"1/s": (1.0, good, "server"), "2/s": (2.0, slow, "server"), "3/s": (3.0, failed, "server"),
             "4/s": (4.0, good, "server"), "5/s": (1.5, failed, "interactive")}  # fmt: skip
    for name, (_, lines, limits) in rates.items():
        write(tmp_path, name, lines, limits)
    points = [MeasuredPoint(name, {"rate": rate}, {}) for name, (rate, _, _) in rates.items()]
    got = figures(tmp_path, *points)
    assert [("highest_rate_server" in one, "highest_rate_interactive" in one) for one in got] == [
        (False, True), (True, False), (False, False), (False, False), (False, False),
    ]  # fmt: skip
    facts = derived((START, *points), PLAN, tmp_path, {})[2].facts
    assert facts == {"server_sure": pytest.approx(0.05), "server_beyond": 3.0}


def test_the_energy_of_a_token_is_that_of_the_samples_of_the_point(tmp_path: Path) -> None:
    write(tmp_path, "2 at once", [request(0.0, *(0.1 * number for number in range(1, 51)))])
    times = [990.0 + number for number in range(30)]  # by the controller's clock; the point is from 1000 to 1010

    def power(watts: float) -> Series:
        return Series("power", "W", times, [watts if 1000 <= time <= 1010 else 1000.0 for time in times])

    host = Samples({"power": power(100.0)}, {0: {"power": power(30.0)}, 1: {"power": power(20.0)}})
    (got,) = figures(tmp_path, users(), h1=host)
    assert got["output_rate"] == 5.0
    assert got["device_energy_per_token"] == pytest.approx(10.0)
    assert got["host_energy_per_token"] == pytest.approx(20.0)
    sampled = Samples({}, {0: {"power": power(30.0)}, 1: {}})
    assert "device_energy_per_token" not in figures(tmp_path, users(), h1=sampled)[0], "a device is not known"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"no archive", "expected lines of JSON about requests"),
        (gzip.compress(b"{oops}"), "expected lines of JSON about requests"),
        (gzip.compress(b"{}\n"), "point"),
        (gzip.compress(b'{"point": "a", "begin_s": 1, "seconds": 1, "limits": ""}\n[]\n'), ":2: "),
    ],
    ids=["no archive", "no JSON", "no point", "no object"],
)
def test_another_file_is_refused(content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "rank0.a.requests.jsonl.gz").write_bytes(content)
    with pytest.raises(FormatError, match=problem):
        requests.read(tmp_path)
    assert requests.percentile([3.0], 99) == 3.0
    assert [requests.percentile(range(1, 101), one) for one in (50, 90, 99)] == [50, 90, 99]


def test_concurrencies_that_do_not_fit_into_memory_are_said(tmp_path: Path) -> None:
    plan: Any = SimpleNamespace(config={**CONFIG, "memory_estimate": {"left_out": [64]}}, cards=1, host=PLAN.host)
    start, *_ = derived((START,), plan, tmp_path, {})
    (scales,) = [one for one in served([outcome_of([start, users({"output_rate": 1.0})])]) if one.name == "scales"]
    assert scales.got == "1 concurrency; 64 would not fit into memory"
    (control,) = [one for one in served([outcome_of([START, users({"output_rate": 1.0})])]) if one.name == "scales"]
    assert control.got == "1 concurrency"
