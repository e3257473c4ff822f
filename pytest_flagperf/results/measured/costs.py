"""What a training cost: the energy to its target, and the price of its cards if the site has one for the chip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_flagperf.results.figures.units import quantity
from pytest_flagperf.results.measured.metrics import MetricValue
from pytest_flagperf.stored.plan import StoredPlan

_HOUR_S, _KWH_J = 3600.0, 3.6e6


def figures(
    plan: StoredPlan, metrics: Mapping[str, MetricValue], rate: MetricValue | None, *, ends_at_target: bool
) -> Iterator[MetricValue]:
    """Yield the energy, the emissions and the costs; ``metrics`` by their names, ``rate``: the samples per second.

    The energy is that of the whole training, so a training that went on after its target has none to the target.
    """
    energy, price = metrics.get("device_energy"), plan.price
    if energy is not None and ends_at_target:
        how = f"device_energy of the training, which ended at its target; {energy.how}"
        yield MetricValue("energy_to_target", energy.value, "J", "lower", how)
        if price is not None and price.co2_g_per_kwh is not None:
            how = f"energy_to_target x {price.co2_g_per_kwh:g} g/kWh, as flagperf.toml says"
            yield MetricValue("carbon_to_target", energy.value / _KWH_J * price.co2_g_per_kwh, "g", "lower", how)
    per_hour = price.per_hour.get(plan.case.hardware) if price else None
    if price is None or per_hour is None:
        return
    cards = f"{plan.cards} x {quantity(per_hour, price.currency)} an hour, as flagperf.toml says"
    if (time := metrics.get("time_to_target")) is not None:
        cost = plan.cards * per_hour * time.value / _HOUR_S
        yield MetricValue("cost_to_target", cost, price.currency, "lower", f"time_to_target x {cards}")
    if rate is not None and rate.value > 0:
        cost = plan.cards * per_hour / _HOUR_S / rate.value * 1e6
        how = f"a million {plan.sample_unit or 'samples'} at {rate.name} x {cards}"
        yield MetricValue("cost_per_million", cost, price.currency, "lower", how)
