"""The loop's parts: optimizers, schedules, the device."""

from __future__ import annotations

import math

import pytest

from tests.driver.pytorch.conftest import RankResults

pytestmark = pytest.mark.slow


def test_lamb_agrees_with_a_direct_implementation(alone: RankResults) -> None:
    distances = alone.value("units", "lamb")
    assert distances["lamb"] < 1e-6
    assert distances["adamw"] > 1e-2, "the control: another optimizer differs"
    assert distances["from_zero"] == pytest.approx(0.1, rel=1e-3), "weights of zero do not scale the step"


def test_lamb_learns_in_the_loop(alone: RankResults) -> None:
    trained = alone["lamb"]
    assert trained.finished["final_loss"] < trained.losses[1]


@pytest.mark.parametrize(
    ("kind", "rates"),
    [
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),
        ("cosine", [1.0, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125), 0.0, 0.0]),
        ("step", [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]),
        ("constant", [1 / 3, 2 / 3, 1.0, 1.0]),
    ],
)
def test_each_step_has_its_learning_rate(alone: RankResults, kind: str, rates: list[float]) -> None:
    assert alone.value("units", kind) == pytest.approx(rates)


def test_the_compile_mode_reaches_torch(alone: RankResults) -> None:
    assert alone.value("units", "compile_mode") == [["default"], ["max-autotune"]]


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("no_end", ["ScheduleError", "lr_schedule='linear'", "set lr_decay, max_steps or max_epochs"]),
        ("no_schedule", ["ScheduleError", "'cosin'", "choose from constant, linear, cosine, step"]),
        ("no_optimizer", ["ValueError", "'lion'", "choose from sgd, adam, adamw, lamb"]),
        ("no_device", ["DeviceError", "'acme'", "has no torch.acme", "modules of [framework.pytorch] in vendor.toml"]),
        ("no_module", ["DeviceError", "module 'torch_acme'", "cannot be imported", "torch 2", "install it beside"]),
        (
            "no_backend",
            [
                "DeviceError",
                "backend 'accl' not found",
                "modules of [framework.pytorch] in vendor.toml",
                "choose from ",
                "gloo",
            ],
        ),
        ("no_events", ["DeviceError", "torch.meta has no Event; define 'events' in the vendor's device.py"]),
        ("no_scaler", ["DeviceError", "precision='fp16'", "has no loss scaler for 'cuda'", "bf16 or fp32"]),
        (
            "no_lower",
            ["DeviceError", "precision='fp16'", "torch.float16 on 'cuda'", "define 'autocast' in the"],
        ),
    ],
)
def test_an_error_says_what_is_possible(alone: RankResults, scenario: str, words: list[str]) -> None:
    message = alone.value("units", scenario)
    assert [word for word in words if word not in message] == []


def test_device_events_separate_work_from_waiting(alone: RankResults) -> None:
    clock = alone.value("units", "device_clock")
    assert clock["name"] == "device events"
    # Four micro-steps of 1 s + 10 s in a window; neither the dropped one nor the time between windows counts.
    assert clock["windows"] == [[2, 44.0, 4.0, 6], [2, 44.0, 4.0, 6]]
    compute, waiting, measured_compute, measured_samples = clock["totals"]
    assert (compute, waiting) == (80.0, 8.0)
    assert (measured_compute, measured_samples) == (60.0, 9), "the first of four steps is warm-up"
    assert clock["step_time"] == {"mean": 22.0, "p50": 22.0, "p90": 22.0, "p99": 22.0}
    assert clock["forward"] == 24.0, "three measured steps of two forward passes"
    assert clock["events"] <= 15, "events are reused"


def test_a_pause_after_the_last_step_does_not_count_by_the_hosts_clock(alone: RankResults) -> None:
    assert alone.value("units", "host_clock") == 8.0


def test_batches_are_copied_in_their_own_stream(alone: RankResults) -> None:
    assert alone.value("units", "copied_aside") == ["copy stream", "default stream", "wait", 1.0]


def test_nested_tensors_are_moved_to_the_device(alone: RankResults) -> None:
    assert alone.value("units", "moved") == ["meta", "meta", "meta", ["text", 3]]


def test_biases_have_no_weight_decay(alone: RankResults) -> None:
    assert alone.value("units", "decays") == [[0.1, [2, 2]], [0.0, [1, 1]]]
    assert alone.value("units", "decay_all") == [[0.1, [2, 1, 2, 1]]]


def test_a_suite_names_further_parameters_without_weight_decay(alone: RankResults) -> None:
    assert alone.value("units", "decay_but") == [[0.1, [2]], [0.0, [1, 2, 1]]]
    assert alone.value("units", "no_parameter") == "ValueError: no_decay: no parameter's name contains '2.weight'"


def test_vendors_turn_their_own_tf32_switches_off_for_fp32(alone: RankResults) -> None:
    assert alone.value("units", "switches") == {
        "ascend": [[True, True], [False, False]],
        "cambricon": [[True, True], [False, False]],
        "mthreads": [[True], [False]],
        "scaler": ["torch_npu's"],
    }
