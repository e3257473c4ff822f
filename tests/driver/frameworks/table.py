"""The trainings that every framework runs, each with what must come out of it; imports no framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ROUNDING = 2e-5
"""The largest difference of weights between single and double precision after some steps."""
FEW = {"throughput_only": True, "timing_warmup_steps": 1, "throughput_steps": 4, "profile_steps": 0}
"""Five steps without an evaluation and without a profile, which would train further."""
FIRST_BIAS = "first.bias"
"""Stands for the framework's own name of the hidden layer's bias."""


@dataclass(frozen=True)
class Scenario:
    """A training: its config, and what its log and its weights must be."""

    config: Mapping[str, Any] = field(default_factory=dict)
    ranks: tuple[int, ...] = (1,)
    """The numbers of ranks with which it runs. All ranks together train 32 samples a step unless ``each``."""
    each: bool = False
    """32 samples a step on each rank."""
    parts: int = 1
    """The micro-steps of a step."""
    formula: Mapping[str, Any] | None = None
    """The settings of the training by hand (toy_reference.py) that must end with the same weights."""
    controls: tuple[Mapping[str, Any], ...] = ()
    """Settings of trainings by hand that must end with other weights."""
    within: float = ROUNDING
    near: str | None = None
    """Another scenario, of one rank; the weights must be close to its weights, but not the same."""
    finished: Mapping[str, Any] = field(default_factory=dict)
    """Fields of FINISHED."""
    exact: bool = False
    """Every sample counts once in the last evaluation, and nothing is dropped there."""
    error: str | None = None
    """A part of the last rank's error; the others end with an error too."""


def optimizer(name: str, **more: Any) -> Scenario:
    how = {"optimizer": name, "weight_decay": 0.1, **more}
    return Scenario({**FEW, **how}, formula={**how, "max_steps": 5}, controls=({**how, "weight_decay": 0.0},))


BOTH = (1, 2)
DECAY = {"weight_decay": 0.5, "max_steps": 5}
TABLE: dict[str, Scenario] = {
    "strong": Scenario(
        ranks=BOTH,
        formula={},
        within=10 * ROUNDING,
        exact=True,
        finished={"stop_reason": "max_steps", "steps": 12, "samples": 384, "epochs": 1, "converged": False},
    ),
    "accumulated": Scenario(ranks=BOTH, parts=4, formula={}, within=10 * ROUNDING, finished={"samples": 384}),
    **{name: optimizer(name) for name in ("sgd", "adam", "adamw", "lamb")},
    "clipped": Scenario(
        {**FEW, "optimizer": "sgd", "weight_decay": 0.1, "max_grad_norm": 1e-2},
        (2,),
        formula={"optimizer": "sgd", "weight_decay": 0.1, "max_grad_norm": 1e-2, "max_steps": 5},
        controls=({"optimizer": "sgd", "weight_decay": 0.1, "max_steps": 5},),
        finished={"stop_reason": "throughput", "steps": 5, "samples": 5 * 32, "measured_samples": 4 * 32},
    ),
    "decayed": Scenario(
        {**FEW, "weight_decay": 0.5, "decay_vectors": True, "no_decay": [FIRST_BIAS]},
        formula={**DECAY, "decay_vectors": True, "no_decay": [FIRST_BIAS]},
        controls=(DECAY, {**DECAY, "decay_vectors": True}),
    ),
    "bf16": Scenario({"precision": "bf16"}, near="strong", within=0.05),
    "fp16": Scenario({"precision": "fp16", "max_grad_norm": 1e3}, near="strong", within=0.05),
    "accumulated_bf16": Scenario({"precision": "bf16"}, parts=4, near="strong", within=0.05),
    "predicted": Scenario({"dropout": 0.5}, (2,), exact=True, near="strong", within=1.0),
    "lr0": Scenario(
        {"learning_rate": 0.0, "norm": True, "eval_shares": "uneven"}, BOTH, formula={"learning_rate": 0.0}, within=0.0
    ),
    "target": Scenario(
        {"target": 0.5, "max_steps": 40, "eval_shares": "one", "dropout": 0.5},
        (2,),
        exact=True,
        finished={"stop_reason": "target", "converged": True},
    ),
    "epochs": Scenario(
        {"short_rank": 1, "max_epochs": 2, "max_steps": None, "eval_steps": None},
        (2,),
        each=True,
        finished={"stop_reason": "max_epochs", "steps": 8, "samples": 8 * 64},
    ),
    "nan": Scenario(
        {"nan_at": [1, 4], "max_steps": 7, "log_freq": 100, "eval_steps": None},
        (2,),
        error="NonFiniteLoss: the loss of step 4 is nan on rank 1",
    ),
}  # fmt: skip
MISSING_ON_CPU = {"mindspore": {"bf16", "accumulated_bf16"}, "paddle": {"bf16", "fp16", "accumulated_bf16"}}
"""The scenarios of mixed precision that a framework refuses on the CPU."""
