"""Checks of the transformer: equal to the published one; the initial weights."""

from __future__ import annotations

import json
import math
import re
import unittest
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import checking
import torch
import transformer
from torch import Tensor
from transformer import Shape, Transformer, latents_of, patches

from flagperf_driver.pytorch import sharding

SHAPE: dict[str, Any] = {
    "latent_channels": 4, "text_size": 24, "pooled_size": 20, "hidden_size": 64, "num_heads": 4,
    "num_double_blocks": 2, "num_single_blocks": 3, "mlp_ratio": 4, "rope_axes": (4, 6, 6), "rope_theta": 1e4,
    "time_waves": 256,
}  # fmt: skip
OTHER = {
    **SHAPE, "latent_channels": 2, "hidden_size": 96, "num_heads": 3, "rope_axes": (8, 12, 12),
    "num_double_blocks": 1, "num_single_blocks": 1,
}  # fmt: skip
WORDS, ROWS, COLUMNS = 5, 6, 8
RECORD = Path(__file__).with_name("published.json")
NEAR = 3e-5
"""The largest difference from the record, whose values are up to 15: rounding makes 5e-6, a wrong epsilon 7e-5."""


def model(**changes: Any) -> Transformer:
    """Return a transformer whose weights are all random, those that begin as 0 too."""
    made, generator = Transformer(Shape(**{**SHAPE, **changes})), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.normal_(float(made.initial(name) is None), 0.2, generator=generator)
    return made


def inputs(shape: Shape) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(2)

    def drawn(*sizes: int) -> Tensor:
        return torch.randn(3, *sizes, generator=generator)

    return {
        "latents": drawn(shape.latent_channels, ROWS, COLUMNS),
        "times": torch.tensor([0.0, 0.3, 0.875]),
        "text": drawn(WORDS, shape.text_size),
        "pooled": drawn(shape.pooled_size),
    }


# -- against diffusers

STREAMS = (
    ("image", "norm1", ("to_q", "to_k", "to_v"), ("norm_q", "norm_k"), "to_out.0", "ff"),
    ("text", "norm1_context", ("add_q_proj", "add_k_proj", "add_v_proj"), ("norm_added_q", "norm_added_k"),
     "to_add_out", "ff_context"),
)  # fmt: skip
"""Ours, and the names of the modulation, of queries, keys and values, their norms, the projection, the other layers."""


def published_names(shape: Shape) -> dict[str, tuple[str, ...]]:
    """Return diffusers' layers by ours; several layers are one of ours."""
    names: dict[str, tuple[str, ...]] = {
        "image_in": ("x_embedder",), "text_in": ("context_embedder",), "last.modulation.linear": ("norm_out.linear",),
        "last.linear": ("proj_out",),
    }  # fmt: skip
    for ours, theirs in (("time_in", "timestep_embedder"), ("pooled_in", "text_embedder")):
        names[f"{ours}.into"] = (f"time_text_embed.{theirs}.linear_1",)
        names[f"{ours}.out"] = (f"time_text_embed.{theirs}.linear_2",)
    for number in range(shape.num_double_blocks):
        block = f"transformer_blocks.{number}"
        for stream, modulation, qkv, norms, project, feed in STREAMS:
            ours = f"double_blocks.{number}.{stream}"
            names[f"{ours}.modulation.linear"] = (f"{block}.{modulation}.linear",)
            names[f"{ours}.qkv"] = tuple(f"{block}.attn.{one}" for one in qkv)
            names[f"{ours}.heads.query"], names[f"{ours}.heads.key"] = ((f"{block}.attn.{one}",) for one in norms)
            names[f"{ours}.project"] = (f"{block}.attn.{project}",)
            names[f"{ours}.into"] = (f"{block}.{feed}.net.0.proj",)
            names[f"{ours}.out"] = (f"{block}.{feed}.net.2",)
    for number in range(shape.num_single_blocks):
        block, ours = f"single_transformer_blocks.{number}", f"single_blocks.{number}"
        names[f"{ours}.modulation.linear"] = (f"{block}.norm.linear",)
        names[f"{ours}.into"] = (*(f"{block}.attn.{one}" for one in ("to_q", "to_k", "to_v")), f"{block}.proj_mlp")
        names[f"{ours}.heads.query"], names[f"{ours}.heads.key"] = (
            (f"{block}.attn.{one}",) for one in ("norm_q", "norm_k")
        )
        names[f"{ours}.out"] = (f"{block}.proj_out",)
    return names


def of_ours(ours: Transformer) -> dict[str, Tensor]:
    """Return diffusers' weights that equal ours."""
    names, weights = published_names(ours.shape), {}
    for name, value in ours.state_dict().items():
        layer, _, kind = name.rpartition(".")
        parts = names[layer]
        sizes = [len(value)] if len(parts) == 1 else [ours.shape.hidden_size] * 3
        sizes += [len(value) - sum(sizes)] if sum(sizes) < len(value) else []
        if layer == "last.modulation.linear":  # diffusers has the last scale before the last shift
            value = torch.cat(value.chunk(2)[::-1])
        weights |= {f"{part}.{kind}": one for part, one in zip(parts, value.split(sizes), strict=True)}
    return weights


def published(ours: Transformer) -> Any:
    """Return diffusers' model with the weights of ours."""
    try:
        from diffusers import FluxTransformer2DModel
    except ImportError:
        raise unittest.SkipTest("diffusers is not installed: pip install diffusers==0.42.1") from None
    shape = ours.shape
    theirs = FluxTransformer2DModel(
        patch_size=1, in_channels=shape.patch_size, num_layers=shape.num_double_blocks,
        num_single_layers=shape.num_single_blocks, attention_head_dim=shape.head_size,
        num_attention_heads=shape.num_heads, joint_attention_dim=shape.text_size,
        pooled_projection_dim=shape.pooled_size, guidance_embeds=False, axes_dims_rope=tuple(shape.rope_axes),
    )  # fmt: skip
    theirs.load_state_dict(of_ours(ours), strict=True)
    return theirs.eval()


def velocity_of(theirs: Any, given: Mapping[str, Tensor]) -> Tensor:
    places = transformer.positions(WORDS, ROWS // 2, COLUMNS // 2).float()
    (tokens,) = theirs(
        hidden_states=patches(given["latents"]), encoder_hidden_states=given["text"],
        pooled_projections=given["pooled"], timestep=given["times"], img_ids=places[WORDS:], txt_ids=places[:WORDS],
        return_dict=False,
    )  # fmt: skip
    return latents_of(tokens, ROWS, COLUMNS)


def check_the_output_is_the_recorded_one_of_diffusers() -> None:
    """``published.json`` has what diffusers computed with these weights and inputs, for machines without diffusers."""
    recorded = torch.tensor(json.loads(RECORD.read_text())["velocity"])
    ours = model()
    with torch.no_grad():
        assert torch.allclose(ours(**inputs(ours.shape)).flatten(), recorded, rtol=0, atol=NEAR)
        ours.get_parameter("single_blocks.1.out.bias")[0] += 0.01
        assert not torch.allclose(ours(**inputs(ours.shape)).flatten(), recorded, rtol=0, atol=NEAR), "the control"


def check_the_output_is_bit_equal_to_diffusers_at_two_sizes() -> None:
    for changes in (SHAPE, OTHER):
        ours = model(**changes)
        given = inputs(ours.shape)
        with torch.no_grad():
            got, expected = ours(**given), velocity_of(published(ours), given)
        assert torch.equal(got, expected), float((got - expected).abs().max())
        assert float(expected.abs().max()) > 1
        if changes is SHAPE:
            recorded = torch.tensor(json.loads(RECORD.read_text())["velocity"])
            assert torch.allclose(expected.flatten(), recorded, rtol=0, atol=NEAR), "write the record again"


def check_gradients_equal_those_of_diffusers() -> None:
    ours = model()
    theirs, given = published(ours), inputs(ours.shape)
    ours(**given).square().mean().backward()
    velocity_of(theirs, given).square().mean().backward()
    gradients = {name: value.grad for name, value in theirs.named_parameters()}
    with torch.no_grad():
        for name, value in ours.named_parameters():
            assert value.grad is not None, name
            value.copy_(value.grad)
    for name, expected in of_ours(ours).items():
        largest = float(gradients[name].abs().max())
        assert torch.allclose(expected, gradients[name], rtol=0, atol=1e-4 * largest), name
        assert largest > 0, name


def check_times_stay_in_fp32() -> None:
    """A model in bf16 gets the waves of the times in fp32; rounded times would be other times."""
    times, waves, seen = torch.tensor([0.3, 0.999, 0.875]), transformer.waves, list[Tensor]()

    def recorded(given: Tensor, count: int) -> Tensor:
        seen.append(waves(given, count))
        return seen[-1]

    ours = model().bfloat16()
    with mock.patch.object(transformer, "waves", recorded):
        ours(**{**inputs(ours.shape), "times": times})
    exact = waves(times, SHAPE["time_waves"])
    assert torch.equal(seen[0], exact)
    assert seen[0].dtype == torch.float32
    assert not torch.allclose(waves(times.bfloat16(), SHAPE["time_waves"]), exact, atol=0.1), "the control"


# -- tokens and initial weights


def check_patches_are_put_together_again() -> None:
    latents = torch.arange(2 * 3 * 4 * 6).reshape(2, 3, 4, 6)
    tokens = patches(latents)
    assert tokens.shape == (2, 6, 12)
    assert tokens[0, 1].tolist() == latents[0, :, 0:2, 2:4].flatten().tolist()
    assert torch.equal(latents_of(tokens, 4, 6), latents)


def check_a_block_begins_as_the_identity() -> None:
    with torch.device("meta"):
        made = Transformer(Shape(**SHAPE))
    ones = [name for name, _ in made.named_parameters() if made.initial(name) is None]
    assert {re.sub(r"\.\d+\.", ".", name) for name in ones} == {
        f"{block}.heads.{norm}.weight"
        for block in ("double_blocks.image", "double_blocks.text", "single_blocks")
        for norm in ("query", "key")
    }
    sharding.materialize(checking.context(), made)
    with torch.no_grad():
        given = inputs(made.shape)
        assert not made(**given).any()
        x, vector = torch.randn(2, 7, 64), torch.randn(2, 64)
        turned = torch.stack((torch.ones(7, 8), torch.zeros(7, 8)))
        assert torch.equal(made.single_blocks[0](x, vector, turned), x)
        image, text = made.double_blocks[0](x[:, :4], x[:, 4:], vector, turned)
        assert torch.equal(torch.cat((image, text), 1), x)
    ours = model()
    assert not torch.equal(ours.single_blocks[0](x, vector, turned), x), "the control"


def check_the_other_weights_begin_as_the_reference_draws_them() -> None:
    with torch.device("meta"):
        made = Transformer(Shape(**SHAPE))
    sharding.materialize(checking.context(), made)
    limit = math.sqrt(6 / (64 + 4 * 64))  # Xavier's, of a layer from 64 to 256 values
    weight = made.get_parameter("double_blocks.1.text.into.weight").detach()
    assert 0.99 * limit < weight.abs().max() <= limit
    assert abs(float(weight.std()) / (limit / math.sqrt(3)) - 1) < 0.03, "uniform"
    embedder = made.get_parameter("pooled_in.out.weight").detach()
    assert abs(float(embedder.std()) / 0.02 - 1) < 0.05
    assert embedder.abs().max() > 3 * 0.02, "normal"
    assert not any(value.any() for name, value in made.named_parameters() if name.endswith("bias"))
    other = made.get_parameter("double_blocks.1.image.into.weight").detach()
    assert not torch.equal(weight, other), "each weight has a generator of its own"


def check_axes_must_fill_a_head() -> None:
    config = type("Config", (), {**SHAPE, "rope_axes": (4, 6, 4)})
    checking.raises(ValueError, lambda: Shape.of(config), "rope_axes = (4, 6, 4)", "hidden_size / num_heads")
