"""Checks of the decoder: equal to the published Llama, and the loss by chunks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from common.language import chunked_loss
from common.language.decoder import Decoder, Shape
from torch import Tensor

from tests.suites import of_transformers

SHAPE: dict[str, Any] = {
    "vocab_size": 500, "num_layers": 3, "hidden_size": 128, "num_heads": 8, "num_kv_heads": 2, "head_size": 16,
    "intermediate_size": 320, "tied_embeddings": False, "norm_epsilon": 1e-5, "rope_theta": 500000.0,
    "rope_factor": 8.0, "rope_low": 1.0, "rope_high": 4.0, "rope_old_context": 64, "init_std": 0.05,
    "loss_chunk": 100, "precision": "fp32",
}  # fmt: skip
LENGTH = 256
"""Longer than rope_old_context: the slow pairs of dimensions turn by angles that matter."""


def decoder(**changes: Any) -> Decoder:
    """Return a decoder with random weights, norms included."""
    model, generator = Decoder(Shape(**{**SHAPE, **changes})), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            deviation = model.initial(name)
            parameter.normal_(float(deviation is None), deviation or 0.1, generator=generator)
    return model


def batch(length: int = LENGTH) -> tuple[Tensor, Tensor]:
    drawn = torch.randint(0, 500, (2, length + 1), generator=torch.Generator().manual_seed(2))
    return drawn[:, :-1], drawn[:, 1:]


# -- against transformers

NEAR = 1e-5
"""The largest difference of logits up to 3, and of gradients; 2e-6 was seen."""


def differences(ours: Decoder, theirs: Any) -> tuple[float, float]:
    """Return the largest difference of logits and of gradients."""
    logits, gradients = of_transformers.outputs(ours, theirs, *batch())
    return _largest(*logits), max(_largest(*pair) for pair in gradients)


def _largest(one: Any, other: Any) -> float:
    return float((one - other).detach().abs().max())


def check_logits_and_gradients_are_those_of_transformers() -> None:
    for tied in (False, True):
        ours = decoder(tied_embeddings=tied)
        logits, gradients = differences(ours, of_transformers.published(ours))
        assert logits < NEAR, (tied, logits)
        assert gradients < NEAR, (tied, gradients)


def check_other_models_give_other_logits() -> None:
    """The control: without the scaling of the rotary positions, another bound of it, or two layers swapped."""
    theirs = of_transformers.published(decoder())
    for changes in ({"rope_factor": 1.0}, {"rope_high": 2.0}):
        ours = decoder(**changes)
        logits, _ = differences(ours, theirs)
        assert logits > 10 * NEAR, (changes, logits)
    swapped = decoder()
    swapped.blocks = torch.nn.ModuleList([swapped.blocks[1], swapped.blocks[0], swapped.blocks[2]])
    assert differences(swapped, theirs)[0] > 10 * NEAR


# -- the loss by chunks


def plain_loss(model: Decoder, tokens: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens).float().flatten(0, 1), targets.flatten())


def check_the_loss_by_chunks_is_the_plain_loss() -> None:
    """Chunk sizes that divide the number of tokens or do not; tied weights get two gradients."""
    tokens, targets = batch(100)
    for tied in (False, True):
        expected = decoder(tied_embeddings=tied)
        expected_loss = plain_loss(expected, tokens, targets)
        (3 * expected_loss).backward()
        for chunk in (50, 77, 1000):
            model = decoder(tied_embeddings=tied, loss_chunk=chunk)
            loss = model(tokens, targets)
            (3 * loss).backward()
            with torch.no_grad():
                assert _largest(model(tokens, targets), loss) < 1e-6
            assert _largest(loss, expected_loss) < 1e-6, (tied, chunk)
            for (name, value), other in zip(model.named_parameters(), expected.parameters(), strict=True):
                assert value.grad is not None
                assert other.grad is not None
                assert _largest(value.grad, other.grad) < 1e-6 < other.grad.abs().max(), (tied, chunk, name)


def check_bf16_keeps_the_gradients_of_the_head() -> None:
    """Gradients of many chunks are added in fp32: the difference to fp32 is that of the products alone."""
    tokens, targets = batch(100)
    expected = decoder()
    plain_loss(expected, tokens, targets).backward()
    for chunk in (10, 1000):
        model = decoder(loss_chunk=chunk, precision="bf16")
        with torch.autocast("cpu", torch.bfloat16):
            model(tokens, targets).backward()
        gradient, plain = model.head.weight.grad, expected.head.weight.grad
        assert gradient is not None
        assert plain is not None
        assert gradient.dtype == torch.float32
        assert float((gradient - plain).norm() / plain.norm()) < 0.02, chunk


def check_logits_of_all_tokens_are_never_in_memory() -> None:
    sizes: list[int] = []

    def watched(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sizes.append(logits.numel())
        return chunked_loss.row_statistics(logits, targets)

    model, (tokens, targets) = decoder(loss_chunk=64), batch()
    model.row_statistics = watched  # type: ignore[method-assign, assignment, unused-ignore]
    model(tokens, targets).backward()
    assert len(sizes) == 2 * LENGTH / 64
    assert set(sizes) == {64 * 500}


def check_a_second_backward_pass_is_an_error() -> None:
    model, (tokens, targets) = decoder(), batch(20)
    loss = model(tokens, targets)
    loss.backward(retain_graph=True)
    try:
        loss.backward()
    except TypeError:
        return
    raise AssertionError("the gradients of the first backward pass were used again")


# -- the model


def check_a_token_changes_only_what_follows() -> None:
    model, (tokens, _) = decoder(), batch(20)
    other = tokens.clone()
    other[:, 12] = (other[:, 12] + 1) % 500
    with torch.no_grad():
        changed = (model(tokens) - model(other)).abs().amax((0, 2)) > 1e-6
    assert changed.tolist() == [place >= 12 for place in range(20)]


def check_the_residual_stream_has_the_precision_of_the_config() -> None:
    tokens, targets = batch(20)
    for precision, expected in (("bf16", torch.bfloat16), ("fp16", torch.float32), ("fp32", torch.float32)):
        outputs: list[Any] = []
        model = decoder(precision=precision)
        for block in model.blocks:
            block.register_forward_hook(lambda *passed, outputs=outputs: outputs.append(passed[-1].dtype))
        with torch.autocast("cpu", torch.bfloat16):
            model(tokens, targets)
        assert set(outputs) == {expected}, precision


def check_a_tied_head_stays_tied_after_it_gets_memory() -> None:
    with torch.device("meta"):
        model = Decoder(Shape(**{**SHAPE, "tied_embeddings": True}))
    model.to_empty(device="cpu")
    assert model.head.weight is not model.embedding.weight, "the control: to_empty() makes two parameters of one"
    model.tie()
    assert model.head.weight is model.embedding.weight
