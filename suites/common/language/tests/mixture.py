"""Checks of the mixture of experts: equal to the published gpt-oss, and its experts in one call."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from common.language import experts
from common.language.mixture import MixtureDecoder, MixtureShape
from common.language.sink_attention import attend
from torch import Tensor

from flagperf_driver.training.expert_load import largest
from tests.suites import of_transformers

SHAPE: dict[str, Any] = {
    "vocab_size": 300, "num_layers": 4, "hidden_size": 64, "num_heads": 8, "num_kv_heads": 2, "head_size": 16,
    "intermediate_size": 48, "tied_embeddings": False, "norm_epsilon": 1e-5, "rope_theta": 150000.0,
    "rope_factor": 32.0, "rope_low": 1.0, "rope_high": 32.0, "rope_old_context": 64, "init_std": 0.02,
    "loss_chunk": 100, "precision": "fp32", "num_experts": 8, "experts_per_token": 3, "attention_window": 16,
    "balance_factor": 0.0, "grouped_products": True,
}  # fmt: skip


def decoder(**changes: Any) -> MixtureDecoder:
    """Return a decoder with large random weights, sinks and biases included."""
    model, generator = MixtureDecoder(MixtureShape(**{**SHAPE, **changes})), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            deviation = 0.2 if parameter.ndim > 1 else 0.5
            parameter.normal_(float(name.endswith("norm.weight")), deviation, generator=generator)
    return model


def batch(length: int) -> tuple[Tensor, Tensor]:
    drawn = torch.randint(0, 300, (3, length + 1), generator=torch.Generator().manual_seed(2))
    return drawn[:, :-1], drawn[:, 1:]


# -- against transformers

NEAR = 1e-4
"""The largest difference of logits, relative to the largest logit, and of each gradient, relative to its norm.

2e-5 was seen. Larger weights make rounding errors so large that they choose other experts."""


def differences(ours: MixtureDecoder, theirs: Any, length: int) -> tuple[float, float]:
    """Return the largest relative difference of logits and of gradients."""
    (logits, expected), gradients = of_transformers.outputs(ours, theirs, *batch(length))
    return (
        float((logits - expected).abs().max() / expected.abs().max()),
        max(float((grad - other).norm() / other.norm()) for grad, other in gradients),
    )


def check_logits_and_gradients_are_those_of_transformers() -> None:
    """Texts shorter than the window, as long, longer by one, and of several windows."""
    ours = decoder()
    theirs = of_transformers.published(ours)
    for length in (10, 16, 17, 100):
        logits, gradients = differences(ours, theirs, length)
        assert logits < NEAR, (length, logits)
        assert gradients < NEAR, (length, gradients)


def check_another_model_gives_other_logits() -> None:
    """The control: each part of the shape that is not gpt-oss's changes the logits."""
    theirs = of_transformers.published(decoder())
    changes: list[dict[str, Any]] = [
        {"rope_factor": 1.0}, {"rope_high": 8.0}, {"attention_window": 17}, {"experts_per_token": 4},
    ]  # fmt: skip
    for change in changes:
        logits, _ = differences(decoder(**change), theirs, 100)
        assert logits > 10 * NEAR, (change, logits)


# -- attention


def plain_attention(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, window: int | None) -> Tensor:
    """Attention by its definition, with the whole matrix of weights."""
    k, v = (one.repeat_interleave(q.shape[1] // k.shape[1], 1) for one in (k, v))
    length, scores = q.shape[2], q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    distance = torch.arange(length)[:, None] - torch.arange(length)
    hidden = (distance < 0) | (distance >= (window or length))
    scores = scores.masked_fill(hidden, -torch.inf)
    with_sinks = torch.cat((scores, sinks[:, None, None].expand(*scores.shape[:3], 1)), -1)
    return with_sinks.softmax(-1)[..., :-1] @ v


def check_attention_with_sinks_is_that_of_the_definition() -> None:
    generator = torch.Generator().manual_seed(3)
    for length, window in ((7, None), (7, 4), (8, 4), (9, 4), (3, 4)):
        inputs = [torch.randn(2, heads, length, 16, generator=generator) for heads in (4, 2, 2)]
        inputs.append(torch.randn(4, generator=generator) * 3)
        found, expected = ([one.clone().requires_grad_() for one in inputs] for _ in range(2))
        outputs = attend(*found, window), plain_attention(*expected, window)
        slopes = torch.randn(outputs[0].shape, generator=generator)
        for output in outputs:
            output.backward(slopes)
        for one, other in zip(
            (outputs[0], *(x.grad for x in found)), (outputs[1], *(x.grad for x in expected)), strict=True
        ):
            assert one is not None
            assert other is not None
            assert float((one - other).detach().abs().max()) < 1e-5, (length, window)
        without = plain_attention(*inputs[:3], torch.full((4,), -torch.inf), window)
        assert float((without - outputs[0]).detach().abs().max()) > 0.1, "the control: no sinks"


# -- experts


def check_the_loop_over_experts_computes_what_one_call_computes() -> None:
    """With an expert that gets no token, too."""
    tokens, targets = batch(20)
    losses, gradients = [], []
    for grouped in (True, False):
        model = decoder(grouped_products=grouped)
        with torch.no_grad():
            model.blocks[1].mixture.router.bias[3] = -1e6
        with mock.patch.object(F, "grouped_mm", wraps=F.grouped_mm) as product:
            loss = model(tokens, targets)
        assert product.called == grouped
        loss.backward()
        losses.append(loss.item())
        gradients.append([value.grad for value in model.parameters()])
        load = model.take_load()
        assert load is not None
        assert load[1, 3] == 0
        assert load.sum(1).tolist() == [3 * 20 * 3] * 4, "no token is dropped"
    assert abs(losses[0] - losses[1]) < 1e-6
    for one, other in zip(*gradients, strict=True):
        assert one is not None
        assert other is not None
        assert float((one - other).abs().max()) <= 1e-5 * float(other.abs().max())


def check_one_call_needs_no_value_on_the_host() -> None:
    """On the device meta, where tensors have no values; the loop, which reads the sizes back, is the control."""
    with torch.device("meta"):
        x = torch.empty(6, 8)
        one_call, loop = (experts.MixtureOfExperts(4, 2, 8, 8, grouped=grouped) for grouped in (True, False))
    mixed, routing = one_call(x)
    assert mixed.shape == x.shape
    assert routing.counts.shape == (4,)
    try:
        loop(x)
    except (NotImplementedError, RuntimeError):
        return
    raise AssertionError("the loop did not read the sizes")


def check_an_expert_that_every_token_chooses_has_the_largest_possible_load() -> None:
    tokens, targets = batch(20)
    loads = []
    for bias in (0.0, 1e6):
        model = decoder()
        with torch.no_grad():
            model.blocks[2].mixture.router.bias[5] += bias
        model(tokens, targets)
        load = model.take_load()
        assert load is not None
        loads.append(largest(load.tolist()))
    assert loads[0] < 2.5
    assert loads[1] == 8 / 3


def check_an_even_load_costs_nothing() -> None:
    mixture, x = experts.MixtureOfExperts(4, 1, 8, 8), torch.eye(8).repeat(10, 1)
    with torch.no_grad():
        for parameter in mixture.parameters():
            parameter.zero_()
        mixture.router.weight.copy_(torch.eye(4).repeat(1, 2) * 100)
        _, even = mixture(x)
        mixture.router.weight[0] = 1000.0
        _, collapsed = mixture(x)
    assert even.counts.tolist() == [20] * 4
    assert collapsed.counts.tolist() == [80, 0, 0, 0]
    assert abs(float(even.unevenness)) < 1e-6
    assert abs(float(collapsed.unevenness) - 3) < 1e-6


def check_the_balance_changes_the_gradients_of_the_training_only() -> None:
    tokens, targets = batch(20)
    plain, balanced = decoder(), decoder(balance_factor=1.0)
    assert float(balanced(tokens, targets) - plain(tokens, targets)) > 1e-3
    assert float(balanced.eval()(tokens, targets) - plain.eval()(tokens, targets)) == 0
    assert balanced.take_load() is not None
    assert balanced.take_load() is None, "the evaluation is not counted"


def check_recomputed_blocks_count_each_token_once() -> None:
    from flagperf_driver.pytorch import sharding

    tokens, targets = batch(20)
    plain, recomputed = decoder(balance_factor=0.1), decoder(balance_factor=0.1)
    sharding.recompute(recomputed.blocks, mode=True)
    for model in (plain, recomputed):
        model(tokens, targets).backward()
    for one, other in zip(plain.parameters(), recomputed.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)
    loads = [model.take_load() for model in (plain, recomputed)]
    assert [load.sum().item() for load in loads if load is not None] == [4 * 3 * 20 * 3] * 2
