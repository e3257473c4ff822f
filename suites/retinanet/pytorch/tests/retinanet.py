"""Checks of RetinaNet's model."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import model
import torch
from checking import context
from common.detection import steps
from torch import Tensor
from torchvision.models.detection import RetinaNet, retinanet_resnet50_fpn
from torchvision.models.detection._utils import BoxCoder, Matcher
from torchvision.models.detection.retinanet import RetinaNetHead

REFERENCE = {"init_checkpoint": None}  # the weights are not here


def small() -> tuple[Any, Any]:
    """Return the small model, and a batch whose images the library would neither resize nor normalise further."""
    ctx = context()
    torch.manual_seed(1)
    net: Any = model.create_model(ctx)
    net.transform.min_size, net.transform.max_size = (64,), 64
    net.transform.image_mean, net.transform.image_std = [0.0] * 3, [1.0] * 3
    return net, steps.prepare_batch(ctx, next(iter(steps.create_train_data(ctx))))


def with_the_parts_of_the_library(net: Any) -> Any:
    """Return the same detector with torchvision's losses."""
    library = deepcopy(net)
    library.head.__class__, library.proposal_matcher.__class__ = RetinaNetHead, Matcher
    library.box_coder.__class__ = library.head.regression_head.box_coder.__class__ = BoxCoder
    return library


def check_the_anchors_are_torchvision_s() -> None:
    ours, theirs = model.create_model(context("reference", **REFERENCE)), retinanet_resnet50_fpn(weights_backbone=None)
    assert ours.anchor_generator.sizes == theirs.anchor_generator.sizes
    assert model.create_model(context()).anchor_generator.sizes != theirs.anchor_generator.sizes, "the control"


def check_the_initial_weights_of_the_heads_are_the_library_s() -> None:
    def moments(net: Any) -> list[Tensor]:
        return [torch.stack([one.mean(), one.std(correction=0)]) for one in net.head.parameters()]

    torch.manual_seed(1)
    ours = moments(model.create_model(context("reference", **REFERENCE)))
    theirs = moments(retinanet_resnet50_fpn(weights_backbone=None))
    assert all(torch.allclose(one, other, rtol=0.1, atol=1e-3) for one, other in zip(ours, theirs, strict=True))
    other = moments(model.create_model(context("reference", **REFERENCE, head_deviation=0.02)))
    assert not all(torch.allclose(one, other, rtol=0.1, atol=1e-3) for one, other in zip(ours, other, strict=True))


def check_a_ready_batch_gives_the_losses_of_the_library() -> None:
    net, batch = small()
    batch = batch._replace(counts=[0, *batch.counts[1:]])  # a picture without objects
    ours = net(batch)
    library = with_the_parts_of_the_library(net)
    theirs = RetinaNet.forward(library, list(batch.pixels), batch.targets())
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name], rtol=1e-4) for name in ours), (ours, theirs)
    shifted = [{**target, "boxes": target["boxes"] / 2} for target in batch.targets()]
    other = RetinaNet.forward(library, list(batch.pixels), shifted)
    assert not all(torch.allclose(ours[name], other[name], rtol=1e-4) for name in ours), "the control: other boxes"


def check_a_ready_batch_gives_the_objects_of_the_library() -> None:
    net, batch = small()
    # In double precision: objects whose scores differ by less than a rounding error change places.
    net.double().eval()
    batch = batch._replace(pixels=batch.pixels.double())
    with torch.no_grad():
        ours, theirs = net(batch), RetinaNet.forward(net, list(batch.pixels))
        other = RetinaNet.forward(net, list(batch.pixels.flip(3)))
    assert sum(len(one["scores"]) for one in ours) > 0
    assert all(same(one, two) for one, two in zip(ours, theirs, strict=True))
    assert not all(same(one, two) for one, two in zip(ours, other, strict=True)), "the control: mirrored images"


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(
        one[name].shape == other[name].shape and torch.allclose(one[name], other[name], atol=1e-4)
        for name in ("boxes", "labels", "scores")
    )
