"""Optimizers by name, fused if the device supports it. LAMB is implemented here, because torch has no LAMB."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flagperf_driver.training.weight_decay import without_decay

Groups = List[Dict[str, Any]]


def parameter_groups(model: nn.Module, config: Any) -> Groups:
    """Return the parameters with weight decay and those without."""
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    without = without_decay({name: parameter.ndim for name, parameter in named.items()}, config)
    groups: Groups = [{"params": [], "weight_decay": config.weight_decay}, {"params": [], "weight_decay": 0.0}]
    for name, parameter in named.items():
        groups[name in without]["params"].append(parameter)
    return [group for group in groups if group["params"]]


def create(config: Any, groups: Groups) -> Optimizer:
    """Return the optimizer that ``config.optimizer`` names."""
    kinds: dict[str, tuple[Callable[..., Optimizer], dict[str, Any]]] = {
        "sgd": (torch.optim.SGD, {"lr": config.learning_rate, "momentum": config.momentum}),
        "adam": (torch.optim.Adam, _adam(config)),
        "adamw": (torch.optim.AdamW, _adam(config)),
        "lamb": (Lamb, _adam(config)),
    }
    kind, options = kinds[config.optimizer]
    fused = {"fused": True} if config.fused_optimizer and kind is not Lamb and _supports_fused(kind, groups) else {}
    return kind(groups, **options, **fused)


def _supports_fused(kind: Callable[..., Optimizer], groups: Groups) -> bool:
    """Try a fused step on the device: torch does not check whether a plug-in device has the kernel."""
    weight = groups[0]["params"][0]
    trial = torch.zeros(1, dtype=weight.dtype, device=weight.device, requires_grad=True)
    trial.grad = torch.zeros_like(trial)
    try:
        kind([trial], fused=True).step()
    except (RuntimeError, TypeError):
        return False
    return True


def _adam(config: Any) -> dict[str, Any]:
    return {"lr": config.learning_rate, "betas": (config.beta1, config.beta2), "eps": config.epsilon}


class Lamb(Optimizer):  # type: ignore[misc, unused-ignore]
    """LAMB (You et al. 2020), over all parameters of a group at once.

    The step of each parameter is scaled by |weights| / |update|, except in groups without weight decay (biases and
    norms), as in published recipes.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        assert closure is None, "LAMB does not support a closure"
        with torch.no_grad():
            for group in self.param_groups:
                weights = [parameter for parameter in group["params"] if parameter.grad is not None]
                if weights:
                    self._step(group, weights)

    def _step(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        beta1, beta2 = group["betas"]
        group["steps"] = steps = group.get("steps", 0) + 1
        gradients = [parameter.grad for parameter in weights]
        first, second = self._moments(weights, "exp_avg"), self._moments(weights, "exp_avg_sq")
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)

        # Each call reads and writes whole tensors, so one factor combines the corrections of both moments.
        root = (1 - beta2**steps) ** 0.5
        factor = root / (1 - beta1**steps)
        roots = torch._foreach_sqrt(second)
        torch._foreach_add_(roots, group["eps"] * root)
        if not group["weight_decay"]:
            torch._foreach_addcdiv_(weights, first, roots, value=-group["lr"] * factor)
            return
        updates = torch._foreach_mul(weights, group["weight_decay"])
        torch._foreach_addcdiv_(updates, first, roots, value=factor)
        torch._foreach_mul_(updates, _trust_ratios(weights, updates))
        torch._foreach_add_(weights, updates, alpha=-group["lr"])

    def _moments(self, weights: list[Tensor], name: str) -> list[Tensor]:
        for weight in weights:
            if name not in self.state[weight]:
                self.state[weight][name] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        return [self.state[weight][name] for weight in weights]


def _trust_ratios(weights: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
    """Return |weights| / |update| of each parameter, 1 if either is zero, without waiting for the device."""
    sizes = torch.stack(torch._foreach_norm(weights))
    steps = torch.stack(torch._foreach_norm(updates))
    ratios = torch.where((sizes > 0) & (steps > 0), sizes / steps, torch.ones_like(sizes))
    return list(ratios.unbind())
