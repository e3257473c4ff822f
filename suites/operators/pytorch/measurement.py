"""The operators of a training's step: their times among each other and alone, beside the step itself."""

from __future__ import annotations

import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from chosen_training import ChosenTraining
from inputs import NAMES, TensorSpec
from recording import FUNCTIONAL, Operator, Recorder, Recording, mapped
from replay import Replay, below_autograd, finished
from torch import Tensor

from flagperf_driver.measuring.measurement import Measurement, Point
from flagperf_driver.pytorch import Context, distributed
from flagperf_driver.pytorch import device as devices

STEP, ALONE, COMPILED, VIEWS = "step", "sum of the operators alone", "compiled step", "views"
ALIKE = 0.05
"""The share of the change of a weight by which the repeated operators may differ from the step, a mean over weights."""
FEWEST_PAIRS = 5
_MOST_SETS, _MOST_BYTES = 8, 1 << 30
"""Of an operator's arguments, which are used in turn: as many sets as calls, but at most so many."""
_LONGEST_NAME, _MOST_LISTED = 150, 4
FLAGPERF = frozenset([
    "abs", "add", "addmm", "all", "amax", "argmax", "bitwise_and", "bitwise_not", "bitwise_or", "bmm", "cos",
    "cross_entropy_loss", "div", "dropout", "eq", "exp", "ge", "gelu", "group_norm", "gt", "isinf", "isnan",
    "layer_norm", "le", "linear", "log_softmax", "lt", "max", "mean", "min", "mm", "mul", "mv", "native_dropout",
    "native_group_norm", "ne", "neg", "outer", "pow", "prod", "reciprocal", "relu", "rsqrt", "rsub", "sigmoid",
    "silu", "sin", "softmax", "sub", "sum", "tanh", "triu",
])  # fmt: skip
"""The operators that FlagPerf's operation/ measures, by its names."""
FLAGPERF_OTHER_NAMES = {"nll_loss_forward": "cross_entropy_loss"}


@dataclass
class Times:
    """Seconds of steps, and of their operators, measured in turn."""

    steps: list[float] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)
    operators: list[list[float]] = field(default_factory=list)
    """For each repetition the time of all calls of each operator."""

    @property
    def step(self) -> float:
        return statistics.median(self.steps)

    @property
    def operators_sum(self) -> float:
        return statistics.median(self.sums)

    @property
    def of_step(self) -> float:
        """The sum as a share of the step that was measured next to it."""
        return statistics.median(both / step for both, step in zip(self.sums, self.steps, strict=True))

    def of_operator(self, number: int) -> float:
        return statistics.median(times[number] for times in self.operators)


class Operators(Measurement):
    """A step of a training is recorded, repeated operator by operator, and each operator is measured alone."""

    together = True

    def __init__(self, ctx: Context) -> None:
        self._ctx, self._marks = ctx, ctx.hooks.events(ctx.device)
        self._training: ChosenTraining | None = ChosenTraining(ctx)
        self._precision = str(self._training.ctx.config.precision)
        for _ in range(ctx.config.warmup_steps):
            self._training.step()
        recording = recorded(self._training)
        self._replay: Replay | None = Replay(recording)
        self._operators = recording.operators
        self._calls_in_order = [call.operator for call in recording.calls if call.operator is not None]
        self._names = names(self._operators)
        self._times = Times()
        self._alone: dict[int, float] = {}
        self._compiled = math.nan
        self._run: Callable[[int], None] = lambda _: None
        self._facts: Mapping[str, Any] = {}

    # -- points --------------------------------------------------------------------------------------------

    def points(self) -> Iterator[Point]:
        yield Point(STEP)
        for number in self._by_time():
            operator = self._operators[number]
            yield Point(self._names[number], {"operator": operator.name, "number": number})
        yield Point(VIEWS)
        yield Point(ALONE)
        if self._ctx.config.compiled:
            yield Point(COMPILED)

    def _by_time(self) -> list[int]:
        """Return the operators that compute or copy, those with the most time of the slowest rank first."""
        numbers = [number for number, operator in enumerate(self._operators) if not operator.is_view]
        slowest = distributed.maximum([*map(self._times.of_operator, numbers)], self._ctx.device)
        return [
            number for _, number in sorted(zip(slowest, numbers, strict=True), key=lambda pair: (-pair[0], pair[1]))
        ]

    def work(self, point: Point) -> Mapping[str, float]:
        operator = self._operator(point)
        if operator is None or not operator.is_alone:
            return {}
        if operator.flops:
            return {f"flops_{self._precision_of(operator)}": operator.flops}
        return {"exchanged" if operator.is_collective else "bandwidth": operator.bytes}

    def prepare(self, point: Point) -> None:
        if point.name == STEP:
            self._compare()
        elif point.name == COMPILED:
            self._compiled = self._compiled_step()
        elif (operator := self._operator(point)) and operator.is_alone:
            self._run = repeated(operator)
        self._facts = self._facts_of(point)

    def run(self, iterations: int) -> None:
        self._run(iterations)

    def release(self) -> None:
        self._run = lambda _: None

    def figures(self, point: Point, seconds: float) -> Mapping[str, float]:
        times = self._times
        if point.name == STEP:
            covered = 1 - abs(1 - times.of_step)
            return {"covered": covered, "step_time": times.step, "operators_time": times.operators_sum}
        if point.name == VIEWS:
            return {"of_step": self._views() / times.step}
        if point.name == ALONE:
            return self._sum_alone()
        if point.name == COMPILED:
            return {"compiled_step_time": self._compiled}
        number = point.values["number"]
        of_step, limit = times.of_operator(number) / times.step, self._limit(self._operators[number])
        if not self._operators[number].is_alone:
            return {"of_step": of_step}
        self._alone[number] = seconds
        rate = {name: units / seconds for name, units in self.work(point).items() if units}
        if limit is None:
            return {"of_step": of_step, **rate}
        of_peak = limit / seconds
        return {"of_step": of_step, "to_gain": of_step * max(0.0, 1 - of_peak), "of_peak": of_peak, **rate}

    def facts(self) -> Mapping[str, Any]:
        return self._facts

    def _facts_of(self, point: Point) -> Mapping[str, Any]:
        """Return what the page says of a point beside its figures."""
        if point.name == STEP:
            return {
                "training": self._ctx.config.shapes_of,
                "operators": len(self._calls_in_order),
                "sum_of_step": round(self._times.of_step, 3),
                "measured": len(self._times.steps),
            }
        operator = self._operator(point)
        if operator is None:
            return {}
        of_flagperf = flagperf_name(operator.name)
        return {
            "calls": operator.calls,
            "part": ", ".join(operator.parts),
            "in_its_place": f"{1e6 * self._times.of_operator(point.values['number']) / operator.calls:.3g} us",
            **({"flagperf": of_flagperf} if of_flagperf else {}),
        }

    # -- the step and its operators in turn -------------------------------------------------------------------

    def _compare(self) -> None:
        """Measure steps and their operators in turn, on all ranks equally often."""
        training, replay, marks = self._training, self._replay, self._marks
        assert training is not None
        assert replay is not None
        begin = time.monotonic()
        replay.run(marks.mark)
        while True:
            line = [marks.mark()]
            training.step()
            line.append(marks.mark())
            self._times.steps += marks.seconds(line)
            gaps = marks.seconds(replay.run(marks.mark))[::2]
            by_operator = [0.0] * len(self._operators)
            for number, seconds in zip(self._calls_in_order, gaps, strict=True):
                by_operator[number] += seconds
            self._times.sums.append(math.fsum(gaps))
            self._times.operators.append(by_operator)
            left = self._ctx.config.compare_s - (time.monotonic() - begin)
            more = distributed.maximum([left > 0 or len(self._times.steps) < FEWEST_PAIRS], self._ctx.device)[0]
            if not more:
                break
        # What follows needs only the operators' layouts.
        self._training = self._replay = None
        self._free_memory()

    def _free_memory(self) -> None:
        gc.collect()
        backend = None if devices.is_host(self._ctx.device) else devices.backend(self._ctx.device)
        getattr(backend, "empty_cache", lambda: None)()

    def _compiled_step(self) -> float:
        """Return the median time of a step of the compiled training."""
        training, marks = ChosenTraining(self._ctx, compiled=True), self._marks
        times: list[float] = []
        for _ in range(self._ctx.config.warmup_steps + len(self._times.steps)):
            line = [marks.mark()]
            training.step()
            line.append(marks.mark())
            times += marks.seconds(line)
        return statistics.median(times[self._ctx.config.warmup_steps :])

    # -- results ---------------------------------------------------------------------------------------------

    def _operator(self, point: Point) -> Operator | None:
        number = point.values.get("number")
        return None if number is None else self._operators[number]

    def _precision_of(self, operator: Operator) -> str:
        """Return the precision of a product, which is that of its first factor."""
        found: list[TensorSpec] = []
        mapped(found.append, operator.args, TensorSpec)
        name = next((NAMES[spec.dtype] for spec in found if spec.dtype in NAMES), "fp32")
        return "tf32" if name == "fp32" and self._precision == "tf32" else name

    def _limit(self, operator: Operator) -> float | None:
        """Return the seconds of a call at the chip's peaks; None without a peak."""
        peaks, precision = self._ctx.peaks, self._precision_of(operator)
        work = {f"peak_tflops.{precision}": operator.flops, "memory_gb_s": operator.bytes}
        if operator.is_collective:
            return None
        return max((units / peaks[peak] for peak, units in work.items() if units and peak in peaks), default=None)

    def _views(self) -> float:
        """Return the time of all operators in the step that compute nothing."""
        return math.fsum(self._times.of_operator(at) for at, one in enumerate(self._operators) if one.is_view)

    def _sum_alone(self) -> dict[str, float]:
        """Return the sum of the operators' times alone; nothing if one was left out."""
        if len(self._alone) < sum(operator.is_alone for operator in self._operators):
            return {}
        sum_alone = math.fsum(self._operators[number].calls * seconds for number, seconds in self._alone.items())
        return {"alone_time": sum_alone + self._views()}


def recorded(training: ChosenTraining) -> Recording:
    """Return the operators of a step; raise an error if they alone do not change the weights as the step does."""
    before = training.copy_state()
    with Recorder(lambda: training.part) as recorder:
        training.step()
    recording, after = recorder.recording(), training.copy_state()
    training.restore(before)
    Replay(recording).run(lambda: None)
    repeated, _ = training.copy_state()
    difference = mean_difference(before[0], after[0], repeated)
    if not difference <= ALIKE:
        raise RuntimeError(
            f"the step's operators, repeated alone, change weights and states otherwise than the step, by"
            f" {difference:.1%} of the change of a tensor; expected at most {ALIKE:.0%}"
        )
    return recording


def mean_difference(before: Sequence[Tensor], after: Sequence[Tensor], repeated: Sequence[Tensor]) -> float:
    """Return the mean over the tensors of their difference as a share of their change, at most 1 for each."""
    shares = []
    for first, changed, again in zip(before, after, repeated, strict=True):
        change, error = (float((changed.double() - other.double()).norm()) for other in (first, again))
        shares.append(min(1.0, error / change) if change else float(error > 0))
    return statistics.fmean(shares)


def repeated(operator: Operator) -> Callable[[int], None]:
    """Return a function that calls an operator so many times, with several sets of arguments in turn."""
    size = 0

    def count(spec: TensorSpec) -> None:
        nonlocal size
        size += spec.bytes

    mapped(count, [operator.args, operator.kwargs], TensorSpec)
    sets = max(1, min(operator.calls, _MOST_SETS, _MOST_BYTES // max(size, 1)))
    in_place = operator.function._schema.is_mutable

    def tensor(spec: TensorSpec) -> Tensor:
        # Repeated in place, a factor must be 1, or values vanish.
        is_factor = in_place and spec.shape == () and spec.dtype.is_floating_point
        return torch.ones((), dtype=spec.dtype, device=spec.device) if is_factor else spec.tensor()

    arguments = [mapped(tensor, [operator.args, operator.kwargs], TensorSpec) for _ in range(sets)]
    results: list[Any] = [None] * sets
    turns, call = itertools.cycle(range(sets)), _complete(operator)

    @below_autograd
    def run(iterations: int) -> None:
        for turn in itertools.islice(turns, iterations):
            args, kwargs = arguments[turn]
            results[turn] = call(*args, **kwargs)

    return run


def _complete(operator: Operator) -> Callable[..., Any]:
    """Return the operator's function; that of a collective operation returns when its result is there."""
    function: Callable[..., Any] = operator.function
    if not operator.is_collective:
        return function
    if operator.function.namespace == FUNCTIONAL:
        return lambda *args, **kwargs: torch.ops._c10d_functional.wait_tensor(function(*args, **kwargs))
    return lambda *args, **kwargs: finished(function(*args, **kwargs))


def names(operators: Sequence[Operator]) -> list[str]:
    """Return a name for each operator, with its arguments; equal names get numbers."""
    taken: dict[str, int] = {}
    found = []
    for operator in operators:
        words = [_text(value) for value in [*operator.args, *operator.kwargs.values()]]
        name = " ".join([operator.name, *filter(None, words)])[:_LONGEST_NAME]
        taken[name] = taken.get(name, 0) + 1
        found.append(name if taken[name] == 1 else f"{name} #{taken[name]}")
    return found


def _text(value: Any) -> str:
    """Return an argument for a name: of many tensors their number and elements, of an object of torch nothing."""
    if isinstance(value, (list, tuple)):
        specs = [item for item in value if isinstance(item, TensorSpec)]
        if len(specs) > _MOST_LISTED:
            return f"{len(specs)} tensors of {sum(math.prod(spec.shape) for spec in specs)} elements"
        return f"({','.join(map(_text, value))})"
    return str(value) if isinstance(value, (TensorSpec, int, float, str)) else ""


def flagperf_name(operator: str) -> str | None:
    """Return FlagPerf's name of an operator that its operation/ measures; None of another one."""
    plain = operator.strip("_")
    names = (operator, plain, plain.removeprefix("native_"), FLAGPERF_OTHER_NAMES.get(operator))
    return next((name for name in names if name in FLAGPERF), None)
