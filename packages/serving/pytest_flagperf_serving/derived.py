"""The points of a round with the figures that follow from the stored requests and from the samples of the devices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flagperf_driver.node.logs.points import MeasuredPoint
from flagperf_driver.node.logs.samples import DeviceWindow, HostWindow, Samples
from flagperf_driver.perflog import number
from pytest_flagperf.stored.plan import StoredPlan

from . import requests
from .requests import Limits, StoredPoint
from .suite import ESTIMATE, LEFT_OUT, LENGTH, LOGGED, OVER, REFERENCE, REQUEST_RATE, START, TOKEN_LIMIT

_LEAST_SAMPLED = 0.5
"""The share of a point's time that must be sampled for its energy."""


@dataclass(frozen=True)
class HighestRate:
    """The highest rate of requests that keeps limits; without one, ``point`` is None."""

    point: StoredPoint | None
    rate: float
    beyond: float
    """The lowest rate that does not; infinite if all do."""
    sure: float
    """With a confidence of 95 % so large a share of all requests is within the limits."""


def derived(
    points: tuple[MeasuredPoint, ...], plan: StoredPlan, folder: Path, samples: Mapping[str, Samples]
) -> tuple[MeasuredPoint, ...]:
    """Return the points; what follows from requests is never taken from the log of the rank."""
    stored = requests.read(folder)
    rates = {
        number(point.values[REQUEST_RATE]): stored[point.name]
        for point in points
        if REQUEST_RATE in point.values and point.name in stored
    }
    limits = limits_of(plan.config)
    highest = {name: highest_rate(rates, limits, name) for name in limits}
    left_out = plan.config.get(ESTIMATE, {}).get(LEFT_OUT)  # an older run estimated no memory
    client_rate = next((point.figures["client_rate"] for point in points if "client_rate" in point.figures), math.nan)

    def with_figures(point: MeasuredPoint) -> MeasuredPoint:
        logged = {name: value for name, value in point.figures.items() if name in LOGGED}
        own = stored.get(point.name)
        if point.name == START and left_out:
            point = replace(point, facts={**point.facts, LEFT_OUT: left_out})
        if own is None or not own.measured or not {OVER, REQUEST_RATE} & point.values.keys():
            return _scored(replace(point, figures=logged), plan.config)
        shares = {f"within_{name}": own.within(one) for name, one in limits.items()}
        times = {**own.times(), **{name: share for name, share in shares.items() if share}}  # a figure is above 0
        load = {"client_load": own.token_rate / client_rate} if client_rate > 0 else {}
        if OVER in point.values:
            more = {**_rates(own, plan.cards), **dict(_energy(own, plan, samples))}
            within = {f"{name}_{TOKEN_LIMIT}": one.token_s for name, one in limits.items()}
            figures = {**logged, **times, **load, **more}
            return replace(point, figures=figures, interval=own.interval, facts={**point.facts, **within})
        facts: dict[str, float] = {}
        for name, one in highest.items():
            if one.point is own:
                load[f"highest_rate_{name}"] = one.rate
                facts[f"{name}_sure"] = one.sure
                facts |= {f"{name}_beyond": one.beyond} if math.isfinite(one.beyond) else {}
        return replace(point, figures={**logged, **times, **load}, facts={**point.facts, **facts})

    return tuple(map(with_figures, points))


def _scored(point: MeasuredPoint, config: Mapping[str, Any]) -> MeasuredPoint:
    """Return the point with the scores of its answers, if it has any, as shares of the stored reference."""
    if not config.get("accuracy_set") or "samples" not in point.facts:
        return point
    length = {LENGTH: config["accuracy_length"]} if config["accuracy_length"] else {}
    stored = {**config["accuracy_reference"], **length}
    shares = {name: number(point.facts.get(name)) / reference for name, reference in stored.items()}
    scores = [share for name, share in shares.items() if name != LENGTH]
    figures = {"score": min(scores), **({"answer_length": shares[LENGTH]} if length else {})}
    facts = {**point.facts, **{f"{name}{REFERENCE}": reference for name, reference in stored.items()}}
    return replace(point, figures={**point.figures, **figures}, facts=facts)


def limits_of(config: Mapping[str, Any]) -> dict[str, Limits]:
    """Return the limits that a config declares, by their names."""
    names = [key.removesuffix("_ttft_s") for key in config if key.endswith("_ttft_s")]
    return {name: Limits(config[f"{name}_ttft_s"], config[f"{name}_tpot_s"]) for name in names}


def highest_rate(rates: Mapping[float, StoredPoint], limits: Mapping[str, Limits], name: str) -> HighestRate:
    """Return the highest rate that keeps limits and is below all that do not.

    A rate is tried only until it is known whether it keeps the limits that it was tried for, which says nothing about
    wider ones.
    """
    own = limits[name]
    tried = {rate: point for rate, point in rates.items() if limits.get(point.head.limits, own).first_s >= own.first_s}
    beyond = min((rate for rate, point in tried.items() if not point.keeps(own)), default=math.inf)
    rate = max((rate for rate in tried if rate < beyond), default=0.0)
    point = tried.get(rate)
    if point is None:
        return HighestRate(None, rate, beyond, 0.0)
    count = len(point.measured)
    return HighestRate(point, rate, beyond, 1 - requests.most_beyond(count, round((1 - point.within(own)) * count)))


def _rates(own: StoredPoint, devices: int) -> dict[str, float]:
    """Return the figures of a number of requests at once."""
    rate, repeated = own.token_rate, own.repeated_speed()
    return {
        "output_rate": rate,
        "device_rate": rate / devices,
        "total_rate": (rate + own.prompt_rate) / devices,
        "user_rate": own.user_rate,
        **({} if repeated is None else {"repeated_speed": repeated}),
    }


def _energy(own: StoredPoint, plan: StoredPlan, samples: Mapping[str, Samples]) -> Iterator[tuple[str, float]]:
    """Yield the energy of an output token, by the monitors' samples of the point's time."""
    begin = own.head.begin_s - plan.host(0).clock_offset_s
    # A host of many, which sums up its samples, does not know the points.
    inside = [one.window(begin, begin + own.head.seconds) for one in samples.values() if one.windows is None]
    devices = [device for host in inside for device in host.devices]
    for name, windows in (("device", devices), ("host", inside)):
        watts = _watts(windows, own.head.seconds)
        if watts and own.token_rate > 0:
            yield f"{name}_energy_per_token", watts / own.token_rate


def _watts(windows: Sequence[DeviceWindow | HostWindow], seconds: float) -> float | None:
    """Return the mean power of all; None if that of one is not known for most of the time."""
    known = [one.energy for one in windows if one.energy is not None and one.energy.covered >= _LEAST_SAMPLED]
    if not known or len(known) < len(windows):
        return None
    return sum(energy.joules / (energy.covered * seconds) for energy in known)
