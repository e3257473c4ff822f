"""A round's profile: its check, the sentence about the largest loss, and its way to results.json and the page."""

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.profile import FlopsAndPeaks, of_record, peaks_sentence
from pytest_flagperf.results.tables import published
from pytest_flagperf.stored import FormatError
from pytest_flagperf.stored.layout import RESULTS
from pytest_flagperf_page import page
from tests.helpers.recording import Training, write
from tests.helpers.stored_runs import trained

RECORD: dict[str, Any] = {
    "steps": 10,
    "step_time": 0.2,
    "input_wait": 0.0,
    "profiled_step_time": 0.201,
    "host_time": 0.03,
    "busy_time": 0.198,
    "kinds": {"matrix product": 0.16, "attention": 0.018, "pointwise": 0.012, "optimizer": 0.004, "host copy": 0.001},
    "exposed": {"host copy": 0.0},
    "attention": {"flash": 0.018},
    "kernels": [{"name": "nvjet_tst_128x256", "kind": "matrix product", "time": 0.16, "calls": 96.0}],
    "calls": 900.0,
    "launches": 850.0,
    "waits": 0.0,
    "wait_time": 0.0,
    "host_bytes": 1048576.0,
    "graph_breaks": 0,
    "bytes": {"least": 1e9, "operations": 4e9, "gradients": 2e8},
}
"""A profile with nothing wrong."""
WORK = FlopsAndPeaks(flops=124e12, peak_flops=1e15, peak_bytes=50e9)
"""A step of 0.2 s has 62 % of the FLOPs, and at least 10 % of the bytes, of the chip's peaks."""
OF_PEAKS = {"bytes at least": 0.02 / 0.138, "bytes of the operations": 0.08 / 0.138}
"""Of a step that computes for 0.138 s."""
NMS = {"name": "nms_kernel", "kind": "other", "time": 0.05, "calls": 80.0}
MATH = {"matrix product": 0.12, "attention": 0.05, "pointwise": 0.02}
"""Attention under a compiler, as on an H100: a softmax in a kernel of its own."""
LOSSES: list[tuple[dict[str, Any], str]] = [
    ({}, "no loss above 5 % of a step"),
    ({"input_wait": 0.062, "busy_time": 0.137}, "input: 31 % waiting"),
    ({"busy_time": 0.137, "profiled_step_time": 0.14}, "no loss above 5 % of a step"),
    ({"busy_time": 0.117, "waits": 163.0}, "host: device idle 42 %, 163 waits a step"),
    (
        {"busy_time": 0.08, "launches": 20331.0, "host_time": 0.199},
        "host: device idle 60 %, 20,331 launches a step take 199 ms",
    ),
    ({"busy_time": 0.17}, "host: device idle 15 %"),
    ({"kinds": MATH, "attention": {"math": 0.04, "flash": 0.01}}, "attention: math kernel, 20 %"),
    ({"kinds": MATH, "attention": {"efficient": 0.05}}, "attention: efficient kernel, 25 %"),
    ({"kinds": {**MATH, "layout copy": 0.044}}, "layout: 22 % copies"),
    ({"exposed": {"host copy": 0.024}}, "host copies: 12 % not overlapped"),
    ({"exposed": {"collective": 0.03, "host copy": 0.01}}, "collectives: 15 % not overlapped"),
    ({"exposed": {"collective": 0.01, "all-to-all": 0.03}}, "all-to-all: 15 % not overlapped"),
    ({"kinds": {"matrix product": 0.15, "fp32 matrix product": 0.02}}, "matrix products: 10 % in fp32"),
    ({"kinds": {"fp32 matrix product": 0.178}}, "no loss above 5 % of a step"),
    (
        {"kinds": {"matrix product": 0.1, "normalization": 0.05, "pointwise": 0.04}},
        "memory: 45 % pointwise, reductions and normalization",
    ),
    ({"kinds": {**MATH, "optimizer": 0.03}}, "optimizer: 15 % of a step"),
    ({"kinds": {**MATH, "other": 0.06}}, "other kernels: 30 % of a step"),
    (
        {"kinds": {**MATH, "other": 0.06}, "kernels": [*RECORD["kernels"], NMS]},
        "other kernels: 30 % of a step, most in nms_kernel",
    ),
]


@pytest.mark.parametrize(("change", "sentence"), LOSSES)
def test_one_sentence_names_the_largest_loss(change: dict[str, Any], sentence: str) -> None:
    assert of_record({**RECORD, **change}, FlopsAndPeaks(), "rank 0").largest_loss == sentence


def test_flops_and_bytes_are_compared_with_the_peaks() -> None:
    good, slow = (of_record(RECORD, WORK._replace(flops=flops), "rank 0") for flops in (124e12, 60e12))
    assert good.peak_share == pytest.approx(0.124 / 0.178)
    assert (good.largest_loss, slow.largest_loss) == (LOSSES[0][1], "matrix products: 34 % of the peak")
    without = {**RECORD, "kinds": {"other": 0.001}}
    assert of_record(without, WORK, "rank 0").peak_share is None
    waiting = {**RECORD, "input_wait": 0.1, "bytes": {**RECORD["bytes"], "operations": None}}
    sentence = peaks_sentence(of_record(waiting, WORK, "rank 0").of_peaks)
    assert sentence == "of the chip's peaks: FLOPs 124 %, bytes at least 20 %"
    assert of_record({**RECORD, "bytes": None}, WORK._replace(flops=None), "rank 0").of_peaks == {}
    assert peaks_sentence({}) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"busy_time": -1.0}, "busy_time is -1.0; expected a number, at least 0"),
        ({"launches": "nan"}, "launches is nan; expected a number, at least 0"),
        ({"bytes": {"least": -1, "operations": None, "gradients": 0}}, "bytes.least is -1.0; expected a number"),
        ({"steps": 0}, "steps is 0; expected a number, at least 1"),
        ({"kinds": {"matrix product": "much"}}, "kinds.'matrix product' is 'much'; expected a number"),
        ({"exposed": {"collective": -0.1}}, "exposed.collective is -0.1; expected a number, at least 0"),
        ({"kinds": {"gemm": 0.1}}, "unknown kind 'gemm'; allowed: all-to-all, attention, "),
        ({"kernels": [{"name": "k", "kind": "other", "time": 0.1}]}, "kernels.0.calls is missing"),
        ({"kernels": [{"name": "k", "kind": "other", "time": 0.1, "calls": -2}]}, "kernels.0.calls is -2.0; expected"),
        ({"problem": "OSError: no counters"}, "OSError: no counters"),
    ],
)
def test_an_invalid_record_is_an_error(change: dict[str, Any], words: str) -> None:
    with pytest.raises(FormatError, match="rank 0") as error:
        of_record({**RECORD, **change}, FlopsAndPeaks(), "rank 0")
    assert words in str(error.value)


def profiled(record: object) -> Training:
    return Training(
        "profiled",
        throughput_only=True,
        steps=55,
        finished=lambda value: {**value, "profile": record},
        plan_fields={"flops_per_sample": 1e6, "peak_tflops": 2.6e-4, "peaks": {"memory_gb_s": 50e9}},
    )


def test_a_profile_is_in_the_results_on_the_page_and_in_the_published_record(tmp_path: Path) -> None:
    # A rank cannot set what the harness finds.
    record = {**RECORD, "input_wait": 0.062, "largest_loss": "none, <b>really</b>", "peak_share": 5.0}
    run_dir = trained(tmp_path / "run", profiled(record))
    stored = json.loads((run_dir / RESULTS).read_text())["cases"][0]["outcomes"][0]["profile"]
    assert stored["largest_loss"] == "input: 31 % waiting"
    assert stored["kernels"] == RECORD["kernels"]
    assert stored["bytes"] == RECORD["bytes"]
    assert stored["of_peaks"] == pytest.approx({"FLOPs": 32e6 / 2.6e8 / 0.138, **OF_PEAKS})
    (result,) = published.load(run_dir)
    assert result.first.profile is not None
    assert result.first.profile.largest_loss == "input: 31 % waiting"
    text = page.standalone(run_dir, tmp_path / "page.html")
    assert "Largest loss: <strong>input: 31 % waiting</strong>; of the chip&#x27;s peaks: FLOPs " in text
    assert "nvjet_tst_128x256" in text
    assert "<b>really" not in text


def test_an_invalid_profile_is_a_warning_and_leaves_the_figures(tmp_path: Path) -> None:
    good = measure(write(profiled(RECORD), tmp_path / "good"))
    bad = measure(write(profiled({**RECORD, "steps": 0}), tmp_path / "bad"))
    (warning,) = set(bad.warnings) - set(good.warnings)
    assert warning == "rank 0: no profile: steps is 0; expected a number, at least 1"
    assert good.profile is not None
    assert (bad.profile, bad.metrics) == (None, good.metrics)
    assert measure(write(profiled(None), tmp_path / "without")).profile is None
