"""The plan of a training: what its config must have, what follows from its shape, and what --plan says of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

from flagperf_driver.training import schedules
from pytest_flagperf.case import Shape
from pytest_flagperf.catalog import REFERENCE, Suite
from pytest_flagperf.config import Resolved, Value
from pytest_flagperf.kind import CaseWords
from pytest_flagperf.plan import Plan, is_throughput_shape


def check(suite: Suite, scale: str, shape: Shape, resolved: Resolved) -> tuple[Resolved, list[str]]:
    """Return the config with the shape's default of ``throughput_only``, and the problems of its values."""
    return _with_shape(resolved, shape, scale), list(_problems(suite, scale, resolved))


def _with_shape(resolved: Resolved, shape: Shape, scale: str) -> Resolved:
    """Return the config with the shape's default of ``throughput_only`` if no file and no option sets it."""
    if resolved.values["throughput_only"].layer != "defaults" or not is_throughput_shape(shape, scale):
        return resolved
    value = Value(True, f"default of {shape} at the {scale} scale", 0, "defaults")
    return replace(resolved, values={**resolved.values, "throughput_only": value})


def _problems(suite: Suite, scale: str, resolved: Resolved) -> Iterator[str]:
    """Yield what makes a training impossible, with the line that sets it."""
    values, file = resolved.values, suite.reference_file(scale)
    parity, stops = values["parity_samples"], values["stop_at_target"]
    limits = ("max_steps", "max_epochs", "max_samples")
    if parity.value is not None and not file.is_file():
        missing = f"{file.relative_to(suite.root)}; python -m tools.calibrate creates it"
        yield f"{parity.where}: parity_samples needs the suite's reference, {missing}"
    if not stops.value and all(values[name].value is None for name in limits):
        yield f"{stops.where}: stop_at_target = False needs a limit; set one of {', '.join(limits)}"
    for problem in schedules.problems(SimpleNamespace(**resolved.config)):
        yield f"{values['lr_schedule'].where}: {problem}"


def describe(plan: Plan) -> CaseWords:
    """Return what --plan says of a training."""
    to_target = "convergence" if plan.config["parity_samples"] is None else "parity"
    labels = [
        "throughput only" if plan.throughput_only else _goal(plan),
        *(["synthetic data"] if plan.synthetic else []),
    ]
    without_data = "missing" if plan.scale == REFERENCE else "included"
    return CaseWords("throughput" if plan.throughput_only else to_target, labels, without_data, {"MFU": _mfu(plan)})


def _goal(plan: Plan) -> str:
    parity = plan.config["parity_samples"]
    if parity is None:
        return "converges to its target" + ("" if plan.config["stop_at_target"] else " and trains on to its limit")
    return f"parity: {parity:,} samples, judged by the reference's loss curve instead of the target"


def _mfu(plan: Plan) -> str:
    flops, peak = plan.flops_per_sample, plan.peak_tflops
    if flops is None or peak is None:
        missing = f"peak of {plan.case.hardware} at {plan.precision}" if peak is None else "FLOPs per sample"
        return f"none: no {missing} declared"
    return f"{flops:g} FLOPs per sample, {peak:g} TFLOP/s dense at {plan.precision} ({plan.peak_source})"
