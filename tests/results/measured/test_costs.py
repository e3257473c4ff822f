"""What a training cost, by the site's prices: nothing without them, and no energy to a target that it did not reach."""

from pathlib import Path
from typing import Any

import pytest

from pytest_flagperf.results.measured.measure import measure
from pytest_flagperf.results.measured.outcome import Outcome
from tests.helpers.recording import Training, write
from tests.results.measured.test_sampled import sampled, ticks

NAMES = ("energy_to_target", "carbon_to_target", "cost_to_target", "cost_per_million")
PRICE = {"per_hour": {"CPU": 36.0}, "currency": "EUR", "co2_g_per_kwh": 400.0}


def measured(tmp_path: Path, target: float, price: Any) -> Outcome:
    """A training of 200 steps that comes to 0.9081 in the evaluation before the last one, and then to 0.9237."""
    folder = write(Training("costs", target=target, plan_fields={"price": price}), tmp_path / "round1")
    sampled(folder, *((when, 300.0, "") for when in ticks()))
    return measure(folder)


def test_costs_are_those_of_the_cards_and_of_their_time(tmp_path: Path) -> None:
    outcome = measured(tmp_path, 0.92, PRICE)
    time, rate = outcome.value("time_to_target"), outcome.value("p_whole")
    assert time
    assert rate
    assert outcome.value("cost_to_target") == pytest.approx(0.01 * time)
    assert outcome.value("cost_per_million") == pytest.approx(0.01 * 1e6 / rate)
    assert outcome.value("energy_to_target") == outcome.value("device_energy")
    assert outcome.value("carbon_to_target") == pytest.approx((outcome.value("device_energy") or 0.0) / 3.6e6 * 400)
    cost = outcome.metric("cost_to_target")
    assert cost
    assert (cost.unit, cost.how) == ("EUR", "time_to_target x 1 x 36 EUR an hour, as flagperf.toml says")


@pytest.mark.parametrize(
    ("target", "price", "missing"),
    [
        (0.92, None, NAMES[1:]),
        (0.92, {**PRICE, "per_hour": {"H100": 2.0}}, NAMES[2:]),
        (0.92, {**PRICE, "co2_g_per_kwh": None}, NAMES[1:2]),
        (0.95, PRICE, NAMES[:3]),
        (0.9, PRICE, NAMES[:2]),
    ],
)
def test_what_is_unknown_has_no_figure(tmp_path: Path, target: float, price: Any, missing: tuple[str, ...]) -> None:
    outcome = measured(tmp_path, target, price)
    assert [name for name in NAMES if outcome.value(name) is None] == [*missing]
