"""The state of a training in PyTorch: weights, optimizer, schedule, and the random generators."""

from __future__ import annotations

import random
import sys
from typing import Any, Mapping

import torch

from flagperf_driver.pytorch import device as devices
from flagperf_driver.pytorch import distributed
from flagperf_driver.pytorch.parts import Parts


def weights(parts: Parts, *, sharded: bool) -> dict[str, Any]:
    """Return the weights and the optimizer's state; every rank must call it."""
    # Only rank 0's statistics are saved. Averaging them now does not change the next evaluation, which averages too.
    distributed.average_statistics(distributed.unwrap(parts.model))
    state = _whole(parts) if sharded else _plain(parts)
    scaler = parts.scaler.state_dict() if parts.scaler else None
    return {**state, "scheduler": dict(parts.scheduler.state_dict()), "scaler": scaler}


def restore_weights(parts: Parts, state: Mapping[str, Any], *, sharded: bool) -> None:
    """Give the parts the state that ``weights`` returned."""
    if sharded:
        _restore_whole(parts, state)
    else:
        distributed.unwrap(parts.model).load_state_dict(state["model"])
        parts.optimizer.load_state_dict(state["optimizer"])
    parts.scheduler.load_state_dict(state["scheduler"])
    if parts.scaler:
        parts.scaler.load_state_dict(state["scaler"])


def _plain(parts: Parts) -> dict[str, Any]:
    model = distributed.unwrap(parts.model)
    return {"model": model.state_dict(), "optimizer": parts.optimizer.state_dict()}


def _whole(parts: Parts) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    model_state, optimizer_state = get_state_dict(parts.model, parts.optimizer, options=options)
    return {"model": model_state, "optimizer": optimizer_state}


def _restore_whole(parts: Parts, state: Mapping[str, Any]) -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

    set_state_dict(
        parts.model,
        parts.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=StateDictOptions(full_state_dict=True),
    )


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the states of this rank's random generators, on the host and on the device."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    device_state = devices.random_state(device)
    if device_state is not None:
        state["device"] = device_state
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = [kind, keys.tolist(), *rest]
    return state


def restore_random(state: Mapping[str, Any], device: torch.device) -> None:
    """Set this rank's random generators to what ``random_state`` returned."""
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "device" in state:
        devices.backend(device).set_rng_state(state["device"])
    if "numpy" in state and "numpy" in sys.modules:
        values: list[Any] = state["numpy"]
        sys.modules["numpy"].random.set_state(tuple(values))
