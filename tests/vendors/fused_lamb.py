"""Run in the torch environment: a vendor's LAMB beside the standard one, in Triton's interpreter; and compiled."""

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

from flagperf_driver import defaults, extern
from flagperf_driver.pytorch import steps, vendor_step_checks

FOLDER = Path(__file__).resolve().parents[2] / "vendors" / "nvidia" / "bert-pytorch" / "extern"
TABLES = ("pointers", "sizes", "owners", "offsets", "begins")


def context(**more: Any) -> Any:
    how = {"optimizer": "lamb", "learning_rate": 0.02, "weight_decay": 0.01, "epsilon": 1e-6, **more}
    return SimpleNamespace(
        config=SimpleNamespace(**{**vars(defaults), **how}),
        device=torch.device("cpu"),
        world_size=2 if "parallel" in more else 1,
    )


def model() -> nn.Module:
    """A parameter of several chunks, the last of them not whole; a short one; norms; a row of zeros."""
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


def apart(ones: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    pairs = zip(ones, others, strict=True)
    return max(float((one - other).abs().max() / one.abs().max()) for one, other in pairs)


def compiled() -> list[str]:
    """The kernels, for a GPU of which none is needed."""
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
    # In a process of its own: where Triton was once imported, it is too late to ask for its interpreter.
    kernels = multiprocessing.get_context("fork").Pool(1).apply(compiled)
    os.environ["TRITON_INTERPRET"] = "1"
    names = {
        "interpreted": type(create(context(), model())).__name__,
        "sharded": type(create(context(parallel="fsdp"), model())).__name__,
        "not wanted": type(create(context(fused_optimizer=False), model())).__name__,
        "adamw": type(create(context(optimizer="adamw"), model())).__name__,
    }
    ours, own = (SimpleNamespace(create_optimizer=step) for step in (create, steps.create_optimizer))
    made = model()
    standard = trained(steps.create_optimizer, context())
    told = {
        "names": names,
        "kernels": kernels,
        "apart": apart(standard, trained(create, context())),
        "without decay": apart(
            *(trained(step, context(weight_decay=0.0)) for step in (steps.create_optimizer, create))
        ),
        "control": apart(standard, trained(steps.create_optimizer, context(optimizer="adamw"))),
        "moved": apart(standard, [parameter.detach() for parameter in model().parameters()][:-1] + standard[-1:]),
        "deviations": vendor_step_checks.check_optimizer(context(), ours, own, made, create(context(), made)),  # type: ignore[arg-type]
    }
    del os.environ["TRITON_INTERPRET"]
    names["cpu"] = type(create(context(), model())).__name__
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
