"""Compare NVIDIA's LAMB with the standard LAMB in Triton's interpreter, and compile it; runs with PyTorch."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from flagperf_driver import extern, options
from flagperf_driver.pytorch import steps, vendor_step_checks
from flagperf_driver.training.parallel import Parallel

FOLDER = Path(__file__).resolve().parents[2] / "vendors" / "nvidia" / "bert-pytorch" / "extern"
TABLES = ("pointers", "sizes", "owners", "offsets", "begins")


def context(**more: Any) -> Any:
    how = {"optimizer": "lamb", "learning_rate": 0.02, "weight_decay": 0.01, "epsilon": 1e-6, **more}
    return SimpleNamespace(
        config=SimpleNamespace(**{**options.values("pytorch"), **how}),
        device=torch.device("cpu"),
        parallel=Parallel.of(more.get("parallel", "ddp"), 2),
    )


def model() -> nn.Module:
    """Return a model with a parameter of several chunks and an incomplete chunk, a short one, norms, and zeros."""
    torch.manual_seed(1)
    made = nn.Sequential(nn.Linear(40, 900), nn.LayerNorm(900), nn.Linear(900, 3), nn.Linear(3, 1, bias=False))
    with torch.no_grad():
        made[3].weight.zero_()
    return made


def trained(create: Any, ctx: Any, count: int = 5) -> list[torch.Tensor]:
    made = model()
    optimizer = create(ctx, made)
    draws = torch.Generator().manual_seed(2)
    for _ in range(count):
        for parameter in made.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=draws)
        optimizer.step()
    return [parameter.detach() for parameter in made.parameters()]


def difference(left: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    pairs = zip(left, right, strict=True)
    return max(float((first - second).abs().max() / first.abs().max()) for first, second in pairs)


def compiled() -> list[str]:
    """Compile the kernels for a GPU, which needs no GPU, and return their names."""
    compiler: Any = importlib.import_module("triton.compiler")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    module = importlib.import_module("flagperf_extern.fused_lamb")
    made = []
    for kernel, fixed in ((module._advance, {"norms": True}), (module._advance, {"norms": False}), (module._apply, {})):
        constants = {"block": module.BLOCK, "rounds": module.ROUNDS, **fixed}
        kinds = {**dict.fromkeys(TABLES, "*i64"), **dict.fromkeys(constants, "constexpr")}
        kinds |= {"partial": "*fp32", "tensors": "i32"}
        signature = {name: kinds.get(name, "fp32") for name in kernel.arg_names}
        made.append(compiler.compile(compiler.ASTSource(kernel, signature, constants), target=target))
    return [kernel.name for kernel in made if kernel.asm["cubin"]]


def main() -> None:
    create = extern.load_steps(FOLDER)["create_optimizer"]
    # In its own process: after Triton is imported, its interpreter cannot be switched on.
    kernels = multiprocessing.get_context("fork").Pool(1).apply(compiled)
    os.environ["TRITON_INTERPRET"] = "1"
    names = {
        "interpreted": type(create(context(), model())).__name__,
        "sharded": type(create(context(parallel="fsdp"), model())).__name__,
        "switched off": type(create(context(fused_optimizer=False), model())).__name__,
        "adamw": type(create(context(optimizer="adamw"), model())).__name__,
    }
    ours, own = (SimpleNamespace(create_optimizer=step) for step in (create, steps.create_optimizer))
    made = model()
    standard = trained(steps.create_optimizer, context())
    results = {
        "names": names,
        "kernels": kernels,
        "difference": difference(standard, trained(create, context())),
        "without decay": difference(
            *(trained(step, context(weight_decay=0.0)) for step in (steps.create_optimizer, create))
        ),
        "control": difference(standard, trained(steps.create_optimizer, context(optimizer="adamw"))),
        "moved": difference(standard, [parameter.detach() for parameter in model().parameters()][:-1] + standard[-1:]),
        "deviations": vendor_step_checks.deviations(context(), ours, own, made, create(context(), made)),  # type: ignore[arg-type]
    }
    del os.environ["TRITON_INTERPRET"]
    names["cpu"] = type(create(context(), model())).__name__
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
