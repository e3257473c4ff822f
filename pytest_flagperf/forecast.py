"""What stored and published runs show of a case before it runs: whether it converges, and how long that takes."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median

from .config.layers import PER_STEP
from .plan import Plan, is_throughput_shape
from .results.earlier import Earlier
from .results.outcome import Outcome
from .results.store import has_converged
from .results.units import quantity

UTILIZATION = 0.3
"""The share of the declared peak at which a training is assumed to run where no run measured its throughput."""


def convergence(plan: Plan, earlier: Earlier, published: Iterable[Path]) -> str:
    """Return what is known of a case's convergence, for its plan.

    ``published`` are folders of published ``results.csv`` files.
    """
    if plan.synthetic or plan.config["parity_samples"] is not None:
        return ""
    if plan.throughput_only:
        return f"not required; --no-throughput-only trains to the target, {training_time(plan, earlier)}"
    where = next(_converged(plan, earlier, published), "")
    if where:
        return f"verified in {where}"
    known = "not verified: no stored or published run of this case reached its target"
    return f"{known}; {training_time(plan, earlier)}" if is_throughput_shape(plan.case.shape, plan.scale) else known


def training_time(plan: Plan, earlier: Earlier) -> str:
    """Return an estimate of the longest training that the config allows, and what it rests on."""
    samples, (rate, source) = most_samples(plan), _throughput(plan, earlier)
    if samples is None or rate is None:
        missing = "limit of the samples" if samples is None else "stored throughput and no declared peak"
        return f"duration unknown: no {missing}"
    seconds = quantity(samples / rate, "s")
    unit = plan.sample_unit
    return f"estimated {seconds} for at most {quantity(samples, unit)} ({quantity(rate, f'{unit}/s', 3)} {source})"


def _converged(plan: Plan, earlier: Earlier, published: Iterable[Path]) -> Iterator[str]:
    """Yield the names of runs and published files in which the case reached its target."""
    for rounds in earlier.runs(_name(plan)):
        if any(_is_like(plan, one) and has_converged(one) for one in rounds):
            yield "a stored run"
    for folder in published:
        for file in sorted(folder.glob("*.csv"), reverse=True):
            if any(_is_row_of(plan, row) and row.get("converged") == "true" for row in _rows(file)):
                yield file.name


def _name(plan: Plan) -> str:
    """The case without its number of rounds."""
    return str(plan.case).rpartition(":")[0]


def _is_like(plan: Plan, outcome: Outcome) -> bool:
    return (outcome.vendor, outcome.scale, outcome.synthetic) == (plan.vendor, plan.scale, plan.synthetic)


def _is_row_of(plan: Plan, row: dict[str, str]) -> bool:
    same_case = (row.get("case") or "").rpartition(":")[0] == _name(plan)
    return same_case and (row.get("vendor"), row.get("scale")) == (plan.vendor, plan.scale)


def _rows(file: Path) -> list[dict[str, str]]:
    """The rows of a published file; a file that cannot be read verifies nothing."""
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            return list(csv.DictReader(stream))
    except (OSError, ValueError, csv.Error):
        return []


def most_samples(plan: Plan) -> float | None:
    """The most samples that the config lets a round train; None if nothing limits them in a known way."""
    config = plan.config
    step = plan.case.shape.cards * math.prod(int(config.get(key) or 1) for key in PER_STEP)
    files = {item.path: item.files for item in plan.manifest}
    epoch = files.get(str(config.get("train_data")))
    limits = [
        _product(config["max_steps"], step),
        _product(config["max_samples"], 1),
        _product(config["max_epochs"], epoch),
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def _product(limit: object, each: int | None) -> float | None:
    return float(limit) * each if isinstance(limit, (int, float)) and each is not None else None


def _throughput(plan: Plan, earlier: Earlier) -> tuple[float | None, str]:
    """The throughput of the newest stored run of the case, else from the declared peak; and which it is."""
    for rounds in earlier.runs(_name(plan)):
        rates = [rate for one in rounds if (rate := one.value("p_core")) and one.vendor == plan.vendor]
        rates = rates if all(one.scale == plan.scale for one in rounds) else []
        if rates:
            return median(rates), "measured"
    if not plan.flops_per_sample or not plan.peak_tflops:
        return None, ""
    peak = plan.case.shape.cards * plan.peak_tflops * 1e12
    return UTILIZATION * peak / plan.flops_per_sample, f"at an assumed {UTILIZATION * 100:g} % of the peak"
