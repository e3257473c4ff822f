"""The loop's parts one by one: optimizers, schedules, the device."""

from __future__ import annotations

import math

import pytest

from tests.driver.pytorch.conftest import Found

pytestmark = pytest.mark.slow


def test_lamb_is_lamb(alone: Found) -> None:
    found = alone.value("units", "lamb")
    assert found["lamb"] < 1e-6
    assert found["adamw"] > 1e-2, "the control: another optimizer is far from the reference"
    assert found["from_zero"] == pytest.approx(0.1, rel=1e-3), "weights of zero leave the step as it is"


def test_lamb_learns_in_the_loop(alone: Found) -> None:
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
def test_each_step_has_its_learning_rate(alone: Found, kind: str, rates: list[float]) -> None:
    assert alone.value("units", kind) == pytest.approx(rates)


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("no_end", ["ValueError", "lr_schedule='linear'", "lr_decay_steps or max_steps"]),
        ("no_schedule", ["ValueError", "'cosin'", "constant, linear, cosine and step"]),
        ("no_optimizer", ["ValueError", "'lion'", "sgd, adam, adamw, lamb"]),
        ("no_device", ["DeviceError", "'acme'", "knows no torch.acme", "modules in vendor.toml"]),
        ("no_module", ["DeviceError", "module 'torch_acme'", "cannot be imported", "torch 2", "install it beside"]),
        ("no_backend", ["DeviceError", "backend 'accl'", "modules in vendor.toml", "there is: ", "gloo"]),
        ("no_events", ["DeviceError", "torch.meta has no Event", "device.py must give 'events'"]),
        ("no_scaler", ["DeviceError", "precision='fp16'", "scales no loss on 'cuda'", "bf16 or fp32"]),
        ("no_lower", ["DeviceError", "precision='fp16'", "torch.float16 on 'cuda'", "device.py give 'autocast'"]),
    ],
)
def test_what_cannot_be_is_said_with_what_can(alone: Found, scenario: str, words: list[str]) -> None:
    told = alone.value("units", scenario)
    assert [word for word in words if word not in told] == []


def test_device_events_part_work_from_waiting(alone: Found) -> None:
    found = alone.value("units", "device_clock")
    assert found["name"] == "device events"
    # Four micro-steps of 1 s + 10 s in a window; neither the dropped one nor the time between windows counts.
    assert found["windows"] == [[2, 44.0, 4.0, 6], [2, 44.0, 4.0, 6]]
    compute, waiting, measured_compute, measured_samples = found["totals"]
    assert (compute, waiting) == (80.0, 8.0)
    assert (measured_compute, measured_samples) == (60.0, 9), "the first of four steps is warm-up"
    assert found["step_time"] == {"mean": 22.0, "p50": 22.0, "p90": 22.0, "p99": 22.0}
    assert found["forward"] == 24.0, "three measured steps of two forward passes"
    assert found["events"] <= 15, "events are used again"


def test_by_the_hosts_clock_a_window_ends_with_its_last_step_however_late_it_is_looked_at(alone: Found) -> None:
    assert alone.value("units", "host_clock") == 8.0


def test_batches_are_copied_aside_and_waited_for(alone: Found) -> None:
    assert alone.value("units", "copied_aside") == ["aside", "back", "wait", 1.0]


def test_tensors_reach_the_device_however_nested(alone: Found) -> None:
    assert alone.value("units", "moved") == ["meta", "meta", "meta", ["text", 3]]


def test_biases_are_not_decayed(alone: Found) -> None:
    assert alone.value("units", "decays") == [[0.1, 1], [0.0, 1]]


def test_vendors_whose_tf32_has_switches_of_its_own_turn_it_off_for_fp32(alone: Found) -> None:
    assert alone.value("units", "switches") == {
        "ascend": [[True, True], [False, False]],
        "cambricon": [[True, True], [False, False]],
        "mthreads": [[True], [False]],
        "scaler": ["torch_npu's"],
    }
