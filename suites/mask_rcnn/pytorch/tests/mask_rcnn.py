"""Checks of Mask R-CNN's model."""

from __future__ import annotations

from typing import Any

import model
import torch
from checking import context
from common.detection import steps
from torch import Tensor
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.ops import MultiScaleRoIAlign

from tests.suites.detections import with_the_parts_of_the_library

REFERENCE = {"init_checkpoint": None}  # the weights are not here


def small() -> tuple[Any, Any]:
    """Return the small model, and a batch whose images the library would neither resize nor normalise further."""
    ctx = context(mask_size=112)
    torch.manual_seed(1)
    net: Any = model.create_model(ctx)
    net.transform.min_size, net.transform.max_size = (64,), 64
    net.transform.image_mean, net.transform.image_std = [0.0] * 3, [1.0] * 3
    # Samples of anchors and proposals are drawn; the library also draws a size before.
    net.backbone.register_forward_pre_hook(lambda *_: torch.manual_seed(3) and None)
    return net, steps.prepare_batch(ctx, next(iter(steps.create_train_data(ctx))))


def whole(targets: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Return the targets with masks of whole images, as the library expects them."""
    pasted = [paste_masks_in_image(one["masks"][:, None].float(), one["boxes"], (64, 64))[:, 0] for one in targets]
    return [{**one, "masks": (masks > 0.5).byte()} for one, masks in zip(targets, pasted, strict=True)]


def losses(found: dict[str, Tensor]) -> dict[str, float]:
    return {name: float(loss.detach()) for name, loss in found.items()}


def check_a_ready_batch_gives_the_losses_of_the_library() -> None:
    net, batch = small()
    targets = whole(batch.targets())
    library = with_the_parts_of_the_library(net)
    ours, theirs = losses(net(batch)), losses(MaskRCNN.forward(library, list(batch.pixels), targets))
    assert ours.keys() == theirs.keys()
    exact = ours.keys() - {"loss_mask"}
    assert all(abs(ours[name] - theirs[name]) < 1e-4 for name in exact), (ours, theirs)
    assert abs(ours["loss_mask"] - theirs["loss_mask"]) < 0.1, (ours, theirs)  # masks of whole images are coarser
    empty = [{**one, "masks": torch.zeros_like(one["masks"])} for one in targets]
    other = losses(MaskRCNN.forward(library, list(batch.pixels), empty))
    assert abs(ours["loss_mask"] - other["loss_mask"]) > 0.3, "the control: other masks"


def check_the_features_of_masks_are_the_library_s_in_the_layout_of_convolutions() -> None:
    torch.manual_seed(1)
    features = {name: torch.randn(2, 8, side, side) for name, side in (("0", 128), ("1", 64))}
    corners = torch.rand(2, 40, 2) * 200
    boxes = list(torch.cat([corners, corners + 20 + torch.rand(2, 40, 2) * 290], dim=2))
    shapes = [(512, 512), (512, 512)]
    ours, theirs = (pool(["0", "1"], 7, 2) for pool in (model.MaskPool, MultiScaleRoIAlign))
    expected = theirs(features, boxes, shapes)
    assert torch.equal(ours(features, boxes, shapes), expected)
    assert set(theirs.map_levels(boxes).tolist()) == {0, 1}, "both levels are used"
    assert not torch.equal(ours(features, boxes[::-1], shapes), expected), "the control: other images' boxes"
    last = {name: level.contiguous(memory_format=torch.channels_last) for name, level in features.items()}
    pooled = ours(last, boxes, shapes)
    assert torch.allclose(pooled, expected, atol=1e-5)
    assert pooled.is_contiguous(memory_format=torch.channels_last)
    assert not theirs(last, boxes, shapes).is_contiguous(memory_format=torch.channels_last)


def check_masks_are_cut_where_their_proposals_are() -> None:
    boxes = torch.tensor([[10.0, 20.0, 30.0, 60.0]])
    assert model.in_boxes(boxes, boxes, 28).tolist() == [[0.0, 0.0, 28.0, 28.0]]
    halves = torch.tensor([[20.0, 20.0, 40.0, 40.0]])
    assert model.in_boxes(halves, boxes, 28).tolist() == [[14.0, 0.0, 42.0, 14.0]]


def check_a_ready_batch_gives_the_objects_and_masks_of_the_library() -> None:
    net, batch = small()
    net.eval()
    with torch.no_grad():
        library = with_the_parts_of_the_library(net)
        ours, theirs = net(batch), MaskRCNN.forward(library, list(batch.pixels))
        other = MaskRCNN.forward(library, list(batch.pixels.flip(3)))
    assert sum(len(one["scores"]) for one in ours) > 0
    assert all(same(one, two) for one, two in zip(ours, theirs, strict=True))
    assert not all(same(one, two) for one, two in zip(ours, other, strict=True)), "the control: mirrored images"


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    if not all(ours[name].shape == theirs[name].shape for name in ("boxes", "labels", "scores")):
        return False
    pasted = paste_masks_in_image(ours["masks"], ours["boxes"], (64, 64))
    pairs = [(ours[name], theirs[name]) for name in ("boxes", "labels", "scores")]
    return all(torch.allclose(one, other, atol=1e-4) for one, other in [*pairs, (pasted, theirs["masks"])])
