"""The memory of a server on a device: its weights, and the cache of keys and values of the requests that it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pytest_flagperf.case import Shape
from pytest_flagperf.catalog import Chip, Suite
from pytest_flagperf.config import Resolved, Value
from pytest_flagperf.plan.memory import ACCURACY, GIB, estimates
from pytest_flagperf.results.figures.units import quantity

from .suite import ESTIMATE, LEFT_OUT

WEIGHTS, REQUEST = "weights", "request"
"""Bytes of the estimate."""
_TRAINED = 4
"""Bytes of a parameter in the estimate of a training, whose weights are fp32."""
_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1}
"""Bytes of a value by precision; 4 with any other, in which weights are not stored."""


def with_memory(resolved: Resolved, shape: Shape, chip: Chip, training: Suite) -> tuple[Resolved, list[str]]:
    """Return the config with the estimate and with the concurrencies that fit; a problem if none does."""
    config = resolved.config
    estimate = None if config["endpoint"] else _estimate(config, _precision(resolved), shape, training)
    if estimate is None:
        return resolved, []
    values, users = dict(resolved.values), config["concurrencies"]
    most = largest(estimate, chip.memory_gib, config, shape)
    kept = [one for one in users if most is None or one <= most]
    if not kept:
        needs = quantity(estimate[WEIGHTS] + estimate[REQUEST], "bytes")
        return resolved, [f"weights and the cache of a request need {needs}, and a device has {chip.memory_gib:g} GiB"]
    if kept != users:
        estimate[LEFT_OUT] = [one for one in users if one not in kept]
        values["concurrencies"] = Value(kept, f"those of {users} that fit into {chip.memory_gib:g} GiB", 0, "case")
    values[ESTIMATE] = Value(estimate, f"estimate of {training.name}", 0, "case")
    return replace(resolved, values=values), []


def largest(
    estimate: Mapping[str, Any], memory_gib: float | None, config: Mapping[str, Any], shape: Shape
) -> int | None:
    """Return the most requests at once whose cache fits beside the weights, all servers together; None if unknown.

    A tenth of the memory is for what engines need beside it.
    """
    if memory_gib is None:
        return None
    free = memory_gib * GIB / (1 + ACCURACY) - estimate[WEIGHTS]
    return max(0, int(free / estimate[REQUEST])) * (1 if config["one_server"] else shape.cards)


def sentence(config: Mapping[str, Any], shape: Shape, hardware: str, memory_gib: float | None) -> str:
    """Return what --plan says of the memory; empty without an estimate."""
    estimate = config[ESTIMATE]
    if not estimate:
        return ""
    most = largest(estimate, memory_gib, config, shape)
    fits = "" if most is None else f"; the {memory_gib:g} GiB of {hardware} hold {most:,} requests at once"
    return (
        f"{quantity(estimate[WEIGHTS], 'bytes')} of weights on each device, and {quantity(estimate[REQUEST], 'bytes')}"
        f" of cache for a request of {config['prompt_tokens'] + config['answer_tokens']:,} tokens{fits}"
    )


def request_bytes(model: Mapping[str, Any], tokens: int, precision: str, divided: int) -> float:
    """Return the bytes of the keys and values of a request on a device, which has a share of the heads.

    A layer with a window keeps no more places; of a mixture that is every second one, from the first.
    """
    layers, window = model["num_layers"], model.get("attention_window") or tokens
    narrow = layers - layers // 2 if "attention_window" in model else 0
    places = narrow * min(tokens, window) + (layers - narrow) * tokens
    heads = max(1.0, model["num_kv_heads"] / divided)  # a head is not divided, but copied
    return float(2 * places * heads * model["head_size"] * _BYTES.get(precision, 4))


def weight_bytes(model: Mapping[str, Any], parameters: float, precision: str, divided: int) -> float:
    """Return the bytes of the weights on a device; in fp8 the embedding and the head stay in bf16."""
    size = _BYTES.get(precision, 4)
    outer = model["vocab_size"] * model["hidden_size"] * (1 if model["tied_embeddings"] else 2)
    return (parameters * size + (outer if size == 1 else 0)) / divided


def _precision(resolved: Resolved) -> str:
    """Return that of the served weights: the suite's own, or that of the training."""
    own = resolved.values["precision"]
    return str(resolved.config["case_config"]["precision"] if own.layer == "defaults" else own.value)


def _estimate(config: Mapping[str, Any], precision: str, shape: Shape, training: Suite) -> dict[str, Any] | None:
    """Return the estimate of a device; None if the training estimates no memory, which has the model's size."""
    model: Mapping[str, Any] = config["case_config"]
    of_training = estimates(training, model, Shape(1, 1))
    if not of_training or of_training[0].estimate is None:
        return None
    parameters = of_training[0].estimate.bytes["weights"] / _TRAINED
    divided, tokens = shape.cards if config["one_server"] else 1, config["prompt_tokens"] + config["answer_tokens"]
    cache = "bf16" if precision == "fp8" else precision
    return {
        WEIGHTS: weight_bytes(model, parameters, precision, divided),
        REQUEST: request_bytes(model, tokens, cache, divided),
        LEFT_OUT: [],
    }
