"""Find what slows a device down in a training step: print the problems by suite and by check, as JSON.

    python -m tests.suites.speed problems '{"SUITE_DIR": []}'
    python -m tests.suites.speed launches '{"SUITE_DIR": ["meta"]}'

The program runs the steps of each suite on the CPU, at the small scale, on synthetic data, under autocast to bf16. It
records every operation of the forward pass, the backward pass and the optimizer's step. With ``launches`` it prints how
many operations a step of the reference model launches, with ``sizes`` how many are compiled for 2 and for 4 layers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from torch.utils.module_tracker import ModuleTracker

from flagperf_driver.driver import Config
from tests.suites import children
from tests.suites.flops import BATCH, context
from tests.suites.trainers import steps_of

BATCHES = 20
FEWER_PIXELS = {"shapes": [(256, 320)]}
LOWER = 0.99
"""The least share of the FLOPs that bf16 must have."""
NOT_NEEDED = ("faster_coco_eval", "jieba", "sacremoses", "sentencepiece", "soundfile")
"""Packages that read data or judge an evaluation: the throughput on synthetic data needs none of them."""
READ_BACKS = {
    "_local_scalar_dense", "bincount", "equal", "is_nonzero", "masked_select", "nms", "nonzero", "_unique2",
    "unique_dim",
}  # fmt: skip
READERS = {torch.Tensor.cpu, torch.Tensor.numpy, torch.Tensor.tolist}
WRITERS = {torch.as_tensor, torch.tensor}
INDEXED = {"_unsafe_index", "index", "index_put", "index_put_"}
COPIES = {"_to_copy", "clone", "contiguous", "copy_"}
Problems = dict[str, list[str]]


class Attention(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
    """Knows whether scaled_dot_product_attention runs: its parts do not count as attention written by hand."""

    running = False
    masked = False
    """The running call has a mask, and its operations were not reported."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not torch.nn.functional.scaled_dot_product_attention:
            return function(*args, **(kwargs or {}))
        mask = (kwargs or {}).get("attn_mask", args[3] if len(args) > 3 else None)
        self.running, self.masked = True, mask is not None
        try:
            return function(*args, **(kwargs or {}))
        finally:
            self.running = self.masked = False


class HostCopies(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
    """Reports copies between host and device; on the CPU they are no operations."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [argument for argument in args if isinstance(argument, torch.Tensor)]
        if function in READERS or (function in WRITERS and (kwargs or {}).get("device") is not None and not given):
            self._recorder.report("read_back", function.__name__, "a copy that waits for the device", given)
        return function(*args, **(kwargs or {}))


class Products(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
    """Reports an input that two layers of one size multiply one after the other: one product would read it once."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._last: tuple[Any, Any] = (None, None)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.nn.functional.linear:
            (given, weight), (before, other) = args[:2], self._last
            if given is before and weight is not other and weight.shape == other.shape:
                self._recorder.report("product", "linear", "one product could have both weights", [given, weight])
            self._last = given, weight
        return function(*args, **(kwargs or {}))


class Recorder(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Collects the problems of the operations that run below it."""

    def __init__(self, code: tuple[Path, ...], attention: Attention) -> None:
        super().__init__()
        checks = ("read_back", "layout", "attention", "mask", "precision", "product")
        self.problems: Problems = {check: [] for check in checks}
        self._code, self._attention = tuple(map(str, code)), attention
        self._modules = ModuleTracker()
        self._scores: dict[int, Any] = {}
        """Results of batched matrix products and of what uses them, by storage; kept, so that no id repeats."""
        self._flops = {True: 0.0, False: 0.0}
        self._others: list[tuple[bool, float, str]] = []

    def __enter__(self) -> Any:
        self._modules.__enter__()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._modules.__exit__(*error)
        lower, other = self._flops[True], self._flops[False]
        if error[0] is None and lower < LOWER * (lower + other):
            share = f"{lower / (lower + other):.1%} of the FLOPs are in bf16; expected at least {LOWER:.0%}"
            self.problems["precision"] = [f"{share}; most others: {max(self._others)[2]}"]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self._read_back(name, args, given)
        self._layout(name, given, made)
        self._softmax(name, given, made)
        self._precision(func, args, kwargs or {}, result, given)
        return result

    def _read_back(self, name: str, args: Any, given: list[Any]) -> None:
        masks = [index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)] if (
            name in INDEXED
        ) else []  # fmt: skip
        if name in READ_BACKS or masks:
            what = "a masked index waits for the device" if masks else "waits for the device"
            self.report("read_back", name, what, given)

    def _layout(self, name: str, given: list[Any], made: list[Any]) -> None:
        if name == "convolution" and (given[0].dim() == 3 or (given[0].dim() == 4 and not _channels_last(given[0]))):
            self.report("layout", name, "the input is not channels_last, which a 3-D input cannot be", given)
        if name in COPIES and made and made[0].dim() == 4:
            source = given[1] if name == "copy_" else given[0]
            kept = _channels_last(source) == _channels_last(made[0])
            if source.shape == made[0].shape and not kept and source.is_contiguous() != made[0].is_contiguous():
                self.report("layout", name, "a copy changes the layout of a 4-D tensor", given)

    def _softmax(self, name: str, given: list[Any], made: list[Any]) -> None:
        if self._attention.running:
            if self._attention.masked:
                self.report("mask", "scaled_dot_product_attention", "a mask keeps flash kernels away", given)
                self._attention.masked = False
            return
        sources = [tensor for tensor in given if _storage(tensor) in self._scores]
        if name in ("_softmax", "_safe_softmax") and sources:
            self.report("attention", name, "attention without scaled_dot_product_attention", given)
        for tensor in made:
            if name in ("bmm", "baddbmm") or any(source.numel() == tensor.numel() for source in sources):
                self._scores[_storage(tensor)] = tensor

    def _precision(self, func: Any, args: Any, kwargs: Any, result: Any, given: list[Any]) -> None:
        count = flop_registry.get(func.overloadpacket)
        if count is None:
            return
        flops = float(count(*args, **kwargs, out_val=result))
        factors = [tensor for tensor in given if tensor.is_floating_point()][:2]  # attention also has float32 sums
        lower = all(tensor.dtype == torch.bfloat16 for tensor in factors)
        self._flops[lower] += flops
        if not lower:
            self._others.append((not self._modules.is_bw, flops, f"{func.overloadpacket.__name__} {self._place()}"))

    def report(self, check: str, name: str, what: str, given: list[Any]) -> None:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in given)
        problem = f"{name}({shapes}) {self._place()}: {what}"
        if problem not in self.problems[check]:
            self.problems[check].append(problem)

    def _place(self) -> str:
        """Return the module and the suite's line; the backward pass has no line."""
        module = max(self._modules.parents - {"Global"}, key=len, default="no module")
        frame: Any = sys._getframe(1)
        while frame is not None and not frame.f_code.co_filename.startswith(self._code):
            frame = frame.f_back
        line = "" if frame is None else f" at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        part = "backward pass" if self._modules.is_bw else "forward pass"
        return f"in {module}{line}, {part}"


def _channels_last(tensor: Any) -> bool:
    return bool(tensor.is_contiguous(memory_format=torch.channels_last))


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


class Launches(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Counts the operations that a device would launch: views launch nothing."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def launches(suite: Path, device: str = "meta") -> int:
    """Count forward and backward pass of a step of the reference model; optimizers are fused.

    On meta the step has no values; on cpu it has one sample, and a detector gets fewer pixels, which as many operations
    read.
    """
    steps, samples = steps_of(suite), 1 if device == "cpu" else BATCH

    def on(place: str) -> Any:
        ctx = context(suite, "reference", place, samples)
        fewer = FEWER_PIXELS if device == "cpu" else {}
        return _with(ctx, **fewer)

    batch = next(iter(steps.create_train_data(on("cpu"))))
    ctx = on(device)
    with ctx.device:
        model = steps.create_model(ctx).train()
    batch = steps.prepare_batch(ctx, batch)
    with Launches() as launched:
        steps.backward(ctx, steps.calculate_loss(ctx, model, batch), None)
    return int(launched.count)


def step_problems(steps: Any, suite: Path) -> Problems:
    """Run one step of the training."""
    from flagperf_driver.pytorch.parts import build

    ctx = _context(suite, channels_last=True)
    parts = build(ctx, steps, steps)
    batch = steps.prepare_batch(ctx, next(iter(parts.train_data)))
    with (
        Attention() as attention,
        Recorder((suite, suite.parents[1] / "common"), attention) as recorder,
        HostCopies(recorder),
        Products(recorder),
    ):
        with torch.autocast("cpu", torch.bfloat16):
            loss = steps.calculate_loss(ctx, parts.model, batch)
        steps.backward(ctx, loss, None)
        if ctx.config.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(list(parts.model.parameters()), ctx.config.max_grad_norm)
        parts.optimizer.step()
    found: Problems = recorder.problems
    return found


@dataclass
class Compiled:
    """What torch.compile got from a suite's own compile_model in the steps of some batches."""

    graphs: list[Any]
    parts: int
    """The number of compiled modules and functions."""
    shapes: int
    """The number of shapes of batches."""
    error: str | None


def compiled(steps: Any, suite: Path, batches: int = BATCHES, **settings: Any) -> Compiled:
    """Compile with the suite's own compile_model, each of its parts as one graph."""
    from flagperf_driver.pytorch.parts import build

    graphs, usual = [], torch.compile

    def collect(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    calls = []

    def strict(model: Any = None, **options: Any) -> Any:
        calls.append(model)
        return usual(model, **{**options, "backend": collect, "fullgraph": True, "mode": None})

    torch.compile = strict
    error, shapes = None, set()
    try:
        ctx = _context(suite, compile=True, **settings)
        parts = build(ctx, steps, steps)
        for raw in islice(parts.train_data, batches):
            batch = steps.prepare_batch(ctx, raw)
            shapes.add(tuple(leaf.shape for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)))
            steps.backward(ctx, steps.calculate_loss(ctx, parts.model, batch), None)
    except (torch._dynamo.exc.TorchDynamoException, torch._dynamo.exc.FailOnRecompileLimitHit) as raised:
        error = str(raised)
    finally:
        torch.compile = usual
        torch._dynamo.reset()
    return Compiled(graphs, len(calls), len(shapes), error)


def graph_problems(steps: Any, suite: Path) -> list[str]:
    """Each compiled part must be one graph for each shape of a batch."""
    found = compiled(steps, suite)
    if found.error is not None:
        return [f"the model is not one graph: {found.error}"]
    if not found.graphs:
        return ["compile_model compiles nothing"]
    if len(found.graphs) > found.shapes * found.parts:
        return [f"{len(found.graphs)} graphs for {found.shapes} shapes of batches and {found.parts} compiled parts"]
    return sorted({problem for graph in found.graphs for problem in _refused_masks(graph)})


def sizes(suite: Path, layers: str) -> dict[str, list[int]]:
    """Return the operations that are compiled for 2 and for 4 layers, by the suite's compile_model and the default."""
    from flagperf_driver.pytorch.steps import compile_model

    own = steps_of(suite)
    return {
        name: [
            sum(len(graph.graph.nodes) for graph in compiled(steps, suite, 1, **{layers: count}).graphs)
            for count in (2, 4)
        ]
        for name, steps in (("own", own), ("whole", replace(own, compile_model=compile_model)))
    }


def _refused_masks(graph: Any) -> Iterator[str]:
    """Report attention that no fused kernel computes, because neighbours in its mask are not neighbours in memory."""
    for node in graph.graph.find_nodes(op="call_function", target=torch.nn.functional.scaled_dot_product_attention):
        mask = node.kwargs.get("attn_mask", node.args[3] if len(node.args) > 3 else None)
        strides = (1,) if mask is None else mask.meta["example_value"].stride()
        if strides[-1] != 1:
            yield f"attention in the graph has a mask with strides {strides}; fused kernels need 1 as the last one"


def _context(suite: Path, **settings: Any) -> Any:
    return _with(context(suite, "small", "cpu"), **settings)


def _with(ctx: Any, **settings: Any) -> Any:
    return replace(ctx, config=Config({**ctx.config.as_dict(), **settings}))


def problems(suite: Path) -> Problems:
    sys.modules.update(dict.fromkeys(NOT_NEEDED))  # type: ignore[arg-type] # their imports fail from here on
    try:
        steps = steps_of(suite)
        return {"packages": [], **step_problems(steps, suite), "graph": graph_problems(steps, suite)}
    except ModuleNotFoundError as error:
        return {"packages": [f"a step on synthetic data imports {error.name}"]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    # A trained bias of attention has a kernel on a device only; the CPU's operations would use float32 for it.
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    commands: dict[str, Callable[..., Any]] = {"problems": problems, "launches": launches, "sizes": sizes}
    children.print_results(commands[sys.argv[1]], sys.argv[2])
