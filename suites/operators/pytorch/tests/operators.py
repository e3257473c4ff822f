"""Checks of the operators of a step: together they are the step, and each is as fast as in a bare loop."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache
from typing import Any

import checking
import measurement
import torch
from chosen_training import BACKWARD, FORWARD, UPDATE, ChosenTraining
from inputs import TensorSpec
from recording import Recorder, Recording, flops_of

from flagperf_driver import options
from flagperf_driver.measuring.measurement import Point
from tests.suites import bare_loop

WITHIN = 0.05


def context(model: str, **settings: Any) -> Any:
    config = checking.SUITE.parents[1] / model / "pytorch" / "config"
    of_training = options.values("pytorch", config / "_base.py", config / "_small.py")
    return checking.context(shapes_of=f"{model}:pytorch:1x1", case_config=of_training, **settings)


def recorded(model: str) -> Recording:
    training = ChosenTraining(context(model))
    training.step()
    return measurement.recorded(training)


@cache
def measured() -> measurement.Operators:
    made = measurement.Operators(context("bert", compare_s=2.0))
    made.prepare(Point(measurement.STEP))
    return made


def point_of(made: measurement.Operators, name: str, calls: int) -> Point:
    numbers = (at for at, one in enumerate(made._operators) if (one.name, one.calls) == (name, calls))
    return Point(name, {"number": next(numbers)})


def check_the_operators_alone_change_the_weights_as_the_step_does() -> None:
    for model, function in (("llama32_1b", "rsqrt"), ("bert", "native_layer_norm")):
        assert function in {operator.name for operator in recorded(model).operators}, model


def check_a_missing_operator_is_an_error() -> None:
    whole = Recorder.recording

    def without_update(recorder: Recorder) -> Recording:
        recording = whole(recorder)
        recording.calls = [call for call in recording.calls if "_fused_adamw_" not in str(call.function)]
        return recording

    Recorder.recording = without_update  # type: ignore[method-assign]
    try:
        checking.raises(RuntimeError, lambda: recorded("bert"), "otherwise than the step", "at most 5%")
    finally:
        Recorder.recording = whole  # type: ignore[method-assign]


def check_the_sum_of_the_operators_is_near_the_step() -> None:
    made, step = measured(), Point(measurement.STEP)
    figures = made.figures(step, math.nan)
    assert 0.5 < figures["covered"] <= 1, figures
    assert made.facts()["operators"] == sum(operator.calls for operator in made._operators)
    made._times.sums = [seconds / 4 for seconds in made._times.sums]
    assert made.figures(step, math.nan)["covered"] < 0.5, "the control: operators that take a quarter of the time"
    made._times.sums = [seconds * 4 for seconds in made._times.sums]


def check_what_there_is_to_gain_up_to_the_chips_peaks() -> None:
    made = measured()
    made._times.steps, made._times.operators = [1.0], [[0.3] * len(made._operators)]
    point = point_of(made, "gelu", 2)
    moved = made._operators[point.values["number"]].bytes
    assert moved == 2 * 4 * 64 * 24 * 256, "fp32 read and written"
    assert made.figures(point, 1.0) == {"of_step": 0.3, "bandwidth": moved}
    made._ctx = replace(made._ctx, peaks={"memory_gb_s": moved / 0.25, "peak_tflops.fp32": 1.0})
    assert made.figures(point, 1.0) == {"of_step": 0.3, "to_gain": 0.3 * 0.75, "of_peak": 0.25, "bandwidth": moved}
    product = made.figures(point_of(made, "mm", 2), 1e12)
    assert product["of_peak"] == product["flops_fp32"] > 0


def check_the_parts_of_a_step_and_the_names_of_flagperf() -> None:
    by_name = {operator.name: operator for operator in measured()._operators}
    parts = {"embedding": [FORWARD], "gelu_backward": [BACKWARD], "_fused_adamw_": [UPDATE]}
    assert {name: by_name[name].parts for name in parts} == parts
    theirs = {
        "native_layer_norm": "layer_norm",
        "_log_softmax": "log_softmax",
        "nll_loss_forward": "cross_entropy_loss",
    }
    assert {name: measurement.flagperf_name(name) for name in theirs} == theirs
    assert measurement.flagperf_name("mm") == "mm"
    assert measurement.flagperf_name("gelu_backward") is None
    assert len(measurement.FLAGPERF) == 52


def check_arguments_have_the_layout_and_the_range_of_the_steps() -> None:
    indices = torch.tensor([[3, 5], [-100, 9]]).t()
    spec = TensorSpec.of(indices)
    spec.observe()
    assert torch.equal(spec.tensor(), indices), "a number in the range is not always an index"
    assert spec.tensor().stride() == indices.stride()
    assert str(spec) == "int64[2,2]/[1,2]"
    large = TensorSpec.of(torch.rand(1100, 1000) + 2)
    large.observe()
    assert 2 <= large.tensor().min() < large.tensor().max() <= 3
    assert not torch.equal(large.tensor(), large.tensor())


def check_flops_of_attention_do_not_count_what_its_mask_leaves_out() -> None:
    q = torch.rand(2, 4, 32, 16)
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    whole, causal = (
        flops_of(attention, (q, q, q, 0.0, mask), {}, attention(q, q, q, 0.0, mask)) for mask in (False, True)
    )
    assert whole == 2 * causal == 2 * 2 * 2 * 4 * 32 * 32 * 16
    assert flops_of(torch.ops.aten.add.Tensor, (q, q), {}, q) == 0


def check_a_product_of_packed_numbers_counts_them_all_and_is_repeated_with_its_type() -> None:
    spec = TensorSpec.of(torch.zeros(32, 8, dtype=torch.uint8).view(torch.float4_e2m1fn_x2))
    spec.observe()
    packed, bytes_ = spec.tensor(), torch.ones(32, 8).to(torch.float8_e4m3fn)
    assert (packed.dtype, str(spec)) == (torch.float4_e2m1fn_x2, "nvfp4[32,8]")
    counted = [flops_of(torch.ops.aten._scaled_mm_v2.default, (one, one.t()), {}, None) for one in (bytes_, packed)]
    assert counted == [2 * 32 * 32 * 8, 2 * 32 * 32 * 16]


def check_an_operator_alone_takes_as_long_as_in_a_bare_loop() -> None:
    made = measured()
    point = point_of(made, "gelu", 2)  # long enough that its call costs nothing
    (spec,) = made._operators[point.values["number"]].args
    given = [torch.randn(spec.shape) for _ in range(2)]  # as many sets as calls, in turn: they share the caches
    results, turns = [torch.empty(0)] * 2, itertools.cycle(range(2))

    def bare() -> None:
        turn = next(turns)
        results[turn] = torch.ops.aten.gelu.default(given[turn])

    ratio = bare_loop.ratio(made, point, bare, WITHIN)
    assert abs(ratio - 1) <= WITHIN, ratio

    class Slower(measurement.Operators):
        def run(self, iterations: int) -> None:
            super().run(math.ceil(iterations * 1.25))  # the control

    made.__class__ = Slower
    assert bare_loop.ratio(made, point, bare, WITHIN) > 1 + WITHIN
