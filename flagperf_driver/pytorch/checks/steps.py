"""Compare a vendor's micro-step with the suite's own: same weights, batch and random state, so the same gradients."""

from __future__ import annotations

import contextlib
import math
import random
from dataclasses import dataclass, replace
from typing import Any, Callable, ContextManager, Iterator, Mapping

import torch
from torch import Tensor, nn

from flagperf_driver.driver import Config
from flagperf_driver.pytorch import device as devices
from flagperf_driver.pytorch import distributed, sharding, states
from flagperf_driver.pytorch.checks import batches
from flagperf_driver.pytorch.context import PyTorchContext
from flagperf_driver.pytorch.hooks import forward_context
from flagperf_driver.pytorch.parts import Parts
from flagperf_driver.pytorch.steps import PyTorchSteps
from flagperf_driver.pytorch.vendor_step_checks import MODEL, AdaptationError, copy_values

COMPARED = {*MODEL, "prepare_batch", "calculate_loss", "backward", "create_grad_scaler"}
"""The replaceable steps that a micro-step consists of."""


@dataclass(frozen=True)
class RoundingTolerance:
    """The largest relative differences that rounding may cause."""

    loss: float
    gradients: float
    """Always allowed."""
    most: float
    """Allowed if the suite's own steps lose as much against fp32: some networks make rounding errors much larger."""


TOLERANCES = {
    "fp32": RoundingTolerance(1e-4, 1e-3, 1e-3),
    "tf32": RoundingTolerance(1e-3, 4e-3, 1e-1),
    "bf16": RoundingTolerance(1e-2, 5e-2, 4e-1),
    "fp16": RoundingTolerance(1e-3, 4e-3, 1e-1),
}
"""By the config's precision. The relative rounding is 2^-24 in fp32, 2^-11 in tf32 and fp16, and 2^-8 in bf16.

Measured on the small scale of three suites: another memory layout in fp32 changes the gradients by at most 2e-6, bf16
instead of fp32 by 4e-3 to 3e-1, and weights in bf16 instead of autocast by 6e-3 to 4e-1. Half of a batch changes them
by 1e-1 to 1.4, and by at least 5e-1 where bf16 changes them by more than 1e-1.
"""
_ROUNDINGS = 3.0
"""Allowed difference of two computations in a lower precision, relative to the difference of one of them from fp32."""
_REDRAWS = 4
_OTHER_ORDER = 2.0
"""Allowed distance of gradients with random numbers in another order, relative to the largest of so many draws of the
suite's own steps."""


@dataclass(frozen=True)
class Result:
    """What a micro-step computed."""

    loss: Tensor
    gradients: Mapping[str, Tensor]

    def finite(self) -> bool:
        norms = [gradient.float().norm() for gradient in self.gradients.values()]
        return bool(torch.stack([self.loss.float().norm(), *norms]).isfinite().all())


class StepComparison:
    """Compares the vendor's steps with the suite's own at the steps that the loop draws.

    The vendor's micro-step runs as any other one, but its batch may have copies of a sample. Its gradients are kept;
    then the suite's own steps run with the same weights, batch and random state. Afterwards weights, statistics and
    random states are as before, and the step is trained with its real batch.
    """

    def __init__(
        self,
        ctx: PyTorchContext,
        steps: PyTorchSteps,
        own: PyTorchSteps,
        parts: Parts,
        micro_step: Callable[[PyTorchSteps, nn.Module, Any, Any, ContextManager[Any] | None], Tensor],
    ) -> None:
        self.compared = 0
        self.armed = False
        self._ctx, self._steps, self._own, self._parts, self._micro_step = ctx, steps, own, parts, micro_step
        self._key = ""
        self._real: Any = None
        self._given: Any = None
        self._vendors: Result | None = None
        self._buffers: list[Tensor] = []
        self._random: Mapping[str, Any] = {}

    # -- the vendor's micro-step ---------------------------------------------------------------------------

    def begin(self, key: str) -> None:
        self.armed, self._key = True, f"{key}/{self._ctx.data_rank}"
        self._random = states.random_state(self._ctx.device)
        self._buffers = [buffer.detach().clone() for buffer in self._parts.model.buffers()]

    def exchanged(self, batch: Any) -> Any:
        """Return the batch for the comparison instead of the step's, before the vendor's steps see it."""
        draw = random.Random(self._key)
        self._real = batch
        # Half of the comparisons have the batch as it is, so that copies of a sample do not give a comparison away.
        self._given = batches.with_copies(batch, draw) if draw.random() < 0.5 else batches.copied(batch)
        return batches.copied(self._given)

    def keep(self, loss: Tensor) -> None:
        """Keep the loss and gradients of the vendor's micro-step, and clear its gradients."""
        self._vendors = self._result(self._parts.model, loss, _scale(self._parts.scaler))
        self.armed = False

    # -- the suite's own -----------------------------------------------------------------------------------

    def finish(self, step: int) -> Any:
        assert self._vendors is not None
        problems = self._problems(self._vendors)
        self._vendors = None
        self._restore()
        rank, problem = next(((rank, text) for rank, text in enumerate(problems) if text), (0, ""))
        if problem and problem != _OVERFLOW:
            raise AdaptationError(
                f"step {step}, rank {rank}: {problem}. "
                f"The vendor's {' and '.join(name for name in self._parts.replaced if name in COMPARED)} "
                "may only change how the loss and its gradients are computed"
            )
        self.compared += not problem
        real, self._real, self._given = self._real, None, None
        return real

    def _restore(self, redraw: int = 0) -> None:
        """Restore statistics and random states, or draw other random numbers."""
        for buffer, value in zip(self._parts.model.buffers(), self._buffers):
            buffer.detach().copy_(value)
        states.restore_random(self._random, self._ctx.device)
        if redraw:
            torch.manual_seed(random.Random(f"{self._key}/{redraw}").getrandbits(60))

    def _problems(self, vendors: Result) -> list[str]:
        """Return each rank's difference from the suite's own steps, "" without one.

        All ranks take the same way, because their steps exchange gradients.
        """
        tolerance, model = TOLERANCES.get(self._ctx.config.precision, TOLERANCES["bf16"]), self._model()
        own, drew = self._own_result(model)
        problems = distributed.gather(self._difference(vendors, own, tolerance))
        if any(problems) and tolerance.most > tolerance.gradients:
            lost = _distance(own.gradients, self._own_result(model, exact=True)[0].gradients)
            allowed = min(max(_ROUNDINGS * lost, tolerance.gradients), tolerance.most)
            tolerance = replace(tolerance, gradients=allowed)
            problems = distributed.gather(self._difference(vendors, own, tolerance))
        if not any(problems) or not any(distributed.gather(drew)):
            return problems
        if any(distributed.gather(not self._draws_alike(model, vendors, own, tolerance))):
            return problems
        with _no_dropout(model), _no_dropout(self._parts.model):
            own, drew = self._own_result(model)
            if any(distributed.gather(drew)):
                return [""] * len(problems)
            return distributed.gather(self._difference(self._vendors_again(), own, tolerance))

    def _draws_alike(self, model: nn.Module, vendors: Result, own: Result, tolerance: RoundingTolerance) -> bool:
        """Return whether the vendor's steps may draw the suite's random numbers, in another order.

        They must be as near as other draws of the suite's own steps are, and another draw must change them as much.
        """
        draws = [self._own_result(model, redraw=draw)[0] for draw in range(1, _REDRAWS + 1)]
        distances = [_distance(draw.gradients, own.gradients) for draw in draws]
        again = _distance(self._vendors_again(redraw=1).gradients, vendors.gradients)
        near = _distance(vendors.gradients, own.gradients) <= _OTHER_ORDER * max(distances) + tolerance.gradients
        return near and again >= min(distances) / _OTHER_ORDER**2

    def _vendors_again(self, redraw: int = 0) -> Result:
        self._restore(redraw)
        batch = self._steps.prepare_batch(self._ctx, batches.copied(self._given))
        loss = self._micro_step(self._steps, self._parts.model, batch, self._parts.scaler, None)
        return self._result(self._parts.model, loss, _scale(self._parts.scaler))

    def _difference(self, vendors: Result, own: Result, tolerance: RoundingTolerance) -> str:
        if own.finite() and vendors.finite():
            return _difference(vendors, own, tolerance)
        if self._ctx.config.precision == "fp16":
            return _OVERFLOW
        if own.finite() == vendors.finite():
            return ""  # the loop reports it
        return f"only the {'suite' if vendors.finite() else 'vendor'}'s loss or gradients are NaN or infinite"

    def _model(self) -> nn.Module:
        """Return the training's model, or, if a vendor replaced a step that makes it, the suite's with its weights."""
        if not set(self._parts.replaced).intersection(MODEL):
            return self._parts.model
        ctx, own = self._ctx, self._own
        model = own.model_to_fp16(ctx, own.convert_model(ctx, own.create_model(ctx)))
        sharding.materialize(ctx, model)
        copy_values(ctx, self._parts.model, model)
        return model.train()

    def _own_result(self, model: nn.Module, *, redraw: int = 0, exact: bool = False) -> tuple[Result, bool]:
        """Return the result of the suite's own steps, and whether they drew random numbers.

        ``redraw`` selects other random numbers; ``exact`` computes in fp32.
        """
        ctx, own, parts = self._ctx, self._own, self._parts
        self._restore(redraw)
        scaler = own.create_grad_scaler(ctx) if "create_grad_scaler" in parts.replaced else parts.scaler
        config = Config({**ctx.config.as_dict(), "precision": "fp32"}) if exact else ctx.config
        with _usual_settings(ctx, config):
            batch = own.prepare_batch(ctx, batches.copied(self._given))
            before = torch.get_rng_state(), devices.random_state(ctx.device)
            loss = self._micro_step(own, model, batch, scaler, forward_context(ctx.hooks, config.precision, ctx.device))
            after = torch.get_rng_state(), devices.random_state(ctx.device)
        result = self._result(model, loss, _scale(scaler))
        # A replicated model synchronizes the gradients of the last micro-step only.
        synchronized = ctx.config.gradient_accumulation_steps == 1 or ctx.parallel.is_sharded
        if model is not parts.model and ctx.world_size > 1 and synchronized:
            result = Result(result.loss, _averaged(result.gradients, ctx.world_size))
        return result, not all(_equal(one, other) for one, other in zip(before, after))

    def _result(self, model: nn.Module, loss: Tensor, scale: float) -> Result:
        gradients = {}
        for name, parameter in distributed.named(model.named_parameters()):
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
                gradients[name] = whole.detach() / scale if scale != 1.0 else whole.detach().clone()
        return Result(loss.detach().clone(), gradients)


_OVERFLOW = "overflow"
"""The scaled gradients of fp16 are too large, as in the first steps; the next drawn step is compared."""


def _difference(vendors: Result, own: Result, tolerance: RoundingTolerance) -> str:
    theirs, ours = float(vendors.loss), float(own.loss)
    # Losses may cross zero; their size is about 1.
    loss = abs(theirs - ours) / max(abs(ours), 0.1)
    gradients = _distance(vendors.gradients, own.gradients)
    if loss <= tolerance.loss and gradients <= tolerance.gradients:
        return ""
    return (
        f"with the same weights, batch and random state the vendor's steps give the loss {theirs:.6g} and gradients "
        f"of norm {_norm(vendors.gradients):.4g}; expected the suite's {ours:.6g} and {_norm(own.gradients):.4g}. The "
        f"loss differs by {loss:.1e} (at most {tolerance.loss:.0e}), the gradients by {gradients:.1e} "
        f"(at most {tolerance.gradients:.0e})"
    )


def _distance(vendors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> float:
    """Return the norm of the difference of all gradients, relative to the suite's."""
    squares = []
    for name in vendors.keys() | own.keys():
        pair = [side[name].float() for side in (vendors, own) if name in side]
        squares.append((pair[0] - pair[1] if len(pair) == 2 else pair[0]).square().sum())
    difference = math.sqrt(float(torch.stack(squares).double().sum())) if squares else 0.0
    norm = _norm(own)
    return difference / norm if norm else math.inf if difference else 0.0


def _norm(gradients: Mapping[str, Tensor]) -> float:
    squares = [gradient.float().square().sum() for gradient in gradients.values()]
    return math.sqrt(float(torch.stack(squares).double().sum())) if squares else 0.0


def _averaged(gradients: Mapping[str, Tensor], ranks: int) -> dict[str, Tensor]:
    for gradient in gradients.values():
        torch.distributed.all_reduce(gradient)
        gradient /= ranks
    return dict(gradients)


def _scale(scaler: Any) -> float:
    return 1.0 if scaler is None else float(scaler.get_scale())


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is None or other is None or torch.equal(one, other)


@contextlib.contextmanager
def _usual_settings(ctx: PyTorchContext, config: Config) -> Iterator[None]:
    """Compute in the config's precision, whatever a vendor's steps have set for the process."""
    before = torch.get_float32_matmul_precision()
    cudnn = torch.backends.cudnn
    flags = {name: getattr(cudnn, name) for name in ("allow_tf32", "benchmark", "deterministic")}
    ctx.hooks.settings(ctx.device, config)
    with _autocast_off(ctx.device):
        yield
    torch.set_float32_matmul_precision(before)
    for name, value in flags.items():
        setattr(cudnn, name, value)


def _autocast_off(device: torch.device) -> ContextManager[Any]:
    try:
        context: ContextManager[Any] = torch.autocast(device.type, enabled=False)
        return context
    except RuntimeError:  # torch knows no autocast for this device, so none can be on
        return contextlib.nullcontext()


@contextlib.contextmanager
def _no_dropout(model: nn.Module) -> Iterator[None]:
    kept = [(module, module.p) for module in model.modules() if isinstance(module, nn.modules.dropout._DropoutNd)]
    for module, _ in kept:
        module.p = 0.0
    yield
    for module, share in kept:
        module.p = share
