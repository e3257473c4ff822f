"""Compare the speed of a vendor's optimizer step with the standard step, on the parameters of a BERT.

    PYTHONPATH=. TORCH_PYTHON benchmarks/extern_step.py                                   # on a GPU
    PYTHONPATH=. TRITON_INTERPRET=1 TORCH_PYTHON benchmarks/extern_step.py --layers 1 --width 64 --words 99 --pairs 3

Two equal models get the same gradients; the optimizer of one is the suite's own, the optimizer of the other is the
adapter's. Their steps alternate, each first in turn, so that disturbances of the machine affect both. Steps are timed
by device events, on the CPU by the host's clock. The output has the medians, the median of the pairs' ratios with its
quartiles, and the final difference of the weights. In Triton's interpreter the times do not show the speed on a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flagperf_driver import extern, options
from flagperf_driver.driver import Config
from flagperf_driver.pytorch import Context, steps

FOLDER = Path(__file__).resolve().parent.parent / "vendors" / "nvidia" / "bert-pytorch" / "extern"
BERT = {"optimizer": "lamb", "learning_rate": 3.5e-4, "weight_decay": 0.01, "epsilon": 1e-6}
WARM_UP = 3


def parameters(layers: int, width: int, vocabulary: int) -> list[tuple[int, ...]]:
    """Return the shapes of a BERT's parameters, including the heads."""
    norm = [(width,), (width,)]
    square = [(width, width), (width,)]
    layer = [*square * 4, *norm, (4 * width, width), (4 * width,), (width, 4 * width), (width,), *norm]
    embeddings = [(vocabulary, width), (512, width), (2, width), *norm]
    return [*embeddings, *layer * layers, *square, *square, *norm, (vocabulary,), (2, width), (2,)]


def twin(shapes: list[tuple[int, ...]], gradients: list[torch.Tensor], device: torch.device) -> nn.Module:
    """Return a model; all models have the same initial weights."""
    torch.manual_seed(1)
    model = nn.ParameterList(nn.Parameter(0.02 * torch.randn(shape, device=device)) for shape in shapes)
    for parameter, gradient in zip(model, gradients, strict=True):
        parameter.grad = gradient
    return model


def timed(step: Callable[[], Any], device: torch.device) -> float:
    """Return the time of a step in milliseconds."""
    if device.type != "cuda":
        begin = time.perf_counter()
        step()
        return (time.perf_counter() - begin) * 1e3
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    step()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last))


def measure(optimizers: list[Any], device: torch.device, pairs: int) -> list[tuple[float, float]]:
    times = []
    for number in range(WARM_UP + pairs):
        order = (0, 1) if number % 2 else (1, 0)
        took = {which: timed(optimizers[which].step, device) for which in order}
        times.append((took[0], took[1]))
    return times[WARM_UP:]


def difference(left_model: nn.Module, right_model: nn.Module) -> float:
    """Return the largest difference of a weight, relative to the largest weight of its parameter."""
    pairs = zip(left_model.parameters(), right_model.parameters(), strict=True)
    return max(float(((left - right).abs().max() / left.abs().max()).detach()) for left, right in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="the extern folder (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--words", type=int, default=30528)
    parser.add_argument("--pairs", type=int, default=100)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ctx = Context(config=Config({**options.values("pytorch"), **BERT}), device=device)
    shapes = parameters(arguments.layers, arguments.width, arguments.words)
    gradients = [0.01 * torch.randn(shape, device=device) for shape in shapes]
    twins = [twin(shapes, gradients, device) for _ in range(2)]
    makers = [steps.create_optimizer, extern.load_steps(arguments.folder)["create_optimizer"]]
    optimizers = [make(ctx, model) for make, model in zip(makers, twins, strict=True)]
    pairs = measure(optimizers, device, arguments.pairs)
    standard, own = (statistics.median(pair[which] for pair in pairs) for which in (0, 1))
    lower, ratio, upper = statistics.quantiles([pair[0] / pair[1] for pair in pairs], n=4)
    where = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    count = sum(gradient.numel() for gradient in gradients)
    print(f"{where}: {count:,} parameters, {len(pairs)} pairs")
    for name, optimizer, took in zip(("standard", "own"), optimizers, (standard, own), strict=True):
        print(f"  {name:8} {type(optimizer).__name__:12} {took:8.3f} ms a step")
    print(f"  {ratio:.2f} times as fast (quartiles {lower:.2f} to {upper:.2f})")
    print(f"  difference after {len(pairs) + WARM_UP} steps: {difference(*twins):.1e} of the largest weight")


if __name__ == "__main__":
    main()
