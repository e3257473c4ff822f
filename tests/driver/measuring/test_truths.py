"""The loop on devices with a known truth: 100 runs of each, on the devices' own clock."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import pytest

from flagperf_driver.measuring.loop import Measured, PointLimits
from flagperf_driver.measuring.measurement import Point
from tests.driver.measuring import fakes
from tests.driver.measuring.fakes import BASE, FakeDevice

RUNS = 100
Device = Callable[[FakeDevice], float]
ONE_TRUTH = [fakes.constant, fakes.noisy, fakes.stalling, fakes.with_neighbour, fakes.warming]
ONE_SPEED = [fakes.constant, fakes.noisy, fakes.stalling, fakes.warming]
"""A neighbour has two speeds, so both answers are true."""
LONG_RUN: Mapping[Device, float] = {
    # By time: a device that works half of it at each speed does the mean of both rates.
    fakes.constant: BASE,
    fakes.noisy: BASE,
    fakes.two_clocks: 1 / (0.5 / BASE + 0.5 / (1.1 * BASE)),
}


@cache
def results(device: Device, seconds: float | None = None) -> Sequence[Measured]:
    return [fakes.measure(FakeDevice(device, seed, Point("fake", seconds=seconds))) for seed in range(RUNS)]


def percentile_90(errors: Sequence[float]) -> float:
    return sorted(map(abs, errors))[RUNS * 9 // 10]


@pytest.mark.parametrize("device", ONE_TRUTH)
def test_the_figure_is_within_1_percent(device: Device) -> None:
    found = results(device)
    assert percentile_90([result.seconds / BASE - 1 for result in found if result.seconds]) <= 0.01
    assert percentile_90([result.figures["rate"] * BASE - 1 for result in found]) <= 0.01
    assert all(result.spent_s < 3.2 for result in found)


def test_stopping_at_the_first_narrow_interval_is_wrong() -> None:
    """The control: a neighbour that stays for 0.2 s is the whole measurement then."""
    limits = PointLimits(least_s=0.0)
    found = [fakes.measure(FakeDevice(fakes.with_neighbour, seed), limits) for seed in range(RUNS)]
    assert percentile_90([result.seconds / BASE - 1 for result in found if result.seconds]) > 0.3
    assert sum(result.steady for result in found) > 90, "and each of them would be sure"


@pytest.mark.parametrize("device", LONG_RUN)
def test_the_sustained_time_is_the_mean_of_a_long_run(device: Device) -> None:
    found = results(device, 3.0)
    assert percentile_90([result.sustained / LONG_RUN[device] - 1 for result in found if result.sustained]) <= 0.012
    assert all(3.0 <= result.spent_s < 4.0 for result in found)
    assert all(result.figures == {"rate": 1 / result.sustained} for result in found if result.sustained)


@pytest.mark.parametrize(("device", "seconds"), [(fakes.sinking, None), (fakes.throttled_late, 3.0)])
def test_a_drift_is_found(device: Device, seconds: float | None) -> None:
    found = [result.drift for result in results(device, seconds)]
    assert sum(drift is not None and drift > 0.03 for drift in found) >= 95


def test_two_speeds_are_found() -> None:
    found = [result.sides for result in results(fakes.two_clocks)]
    assert sum(sides is not None and abs(sides[1] / sides[0] - 1.1) < 0.01 for sides in found) >= 95


@pytest.mark.parametrize("seconds", [None, 3.0])
def test_an_even_device_has_neither(seconds: float | None) -> None:
    for device in (*ONE_TRUTH, fakes.two_clocks):
        assert sum(result.drift is not None for result in results(device, seconds)) <= 3, device
    for device in ONE_SPEED:
        assert sum(result.sides is not None for result in results(device, seconds)) <= 3, device
