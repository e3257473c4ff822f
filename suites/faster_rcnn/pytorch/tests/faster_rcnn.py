"""Checks of Faster R-CNN's model and of the steps of detection with it."""

from __future__ import annotations

from typing import Any

import model
import numpy as np
import torch
from checking import context
from common.detection import steps
from common.detection.coco import random_pictures
from torch import Tensor, nn

from tests.suites.detections import with_the_parts_of_the_library

REFERENCE = {"init_checkpoint": None}  # the weights are not here


def prepared(ctx: Any) -> Any:
    return steps.prepare_batch(ctx, next(iter(steps.create_train_data(ctx))))


def check_a_ready_batch_gives_the_losses_of_the_library() -> None:
    """The library resizes and pads pictures itself; here they have their size already."""
    from torchvision.models.detection import FasterRCNN

    ctx = context(shapes=[(64, 64)])
    batch = prepared(ctx)
    batch = batch._replace(counts=[0, *batch.counts[1:]])  # a picture without objects
    net: Any = model.create_model(ctx)

    # Samples of anchors and proposals are drawn; the library also draws a size before.
    net.backbone.register_forward_pre_hook(lambda *_: torch.manual_seed(3) and None)

    def losses(forward: Any) -> dict[str, float]:
        return {name: float(loss) for name, loss in forward().items()}

    ours = losses(lambda: net(batch))
    net = with_the_parts_of_the_library(net)
    net.transform.min_size, net.transform.max_size = (64,), 64
    net.transform.image_mean, net.transform.image_std = [0.0] * 3, [1.0] * 3
    theirs = losses(lambda: FasterRCNN.forward(net, list(batch.pixels), batch.targets()))
    assert ours.keys() == theirs.keys()
    assert all(abs(ours[name] - theirs[name]) < 1e-4 for name in ours), (ours, theirs)
    shifted = [{**target, "boxes": target["boxes"] / 2} for target in batch.targets()]
    other = losses(lambda: FasterRCNN.forward(net, list(batch.pixels), shifted))
    assert any(abs(ours[name] - other[name]) > 1e-2 for name in ours), "the control: other boxes"


def check_predictions_are_in_pixels_of_the_stored_picture() -> None:
    class Finder(nn.Module):
        """Finds the first object of each picture."""

        def forward(self, batch: Any) -> list[dict[str, Tensor]]:
            return [
                {"boxes": one["boxes"][:1], "labels": one["labels"][:1], "scores": torch.ones(1)}
                for one in batch.targets()
            ]

    ctx = context()
    drawn = next(iter(steps.create_eval_data(ctx)))
    larger = drawn._replace(originals=drawn.originals * [2, 3])  # height, width
    found = steps.evaluate_batch(ctx, Finder(), steps.prepare_batch(ctx, larger))
    assert [one.picture for one in found] == drawn.ids.tolist()
    for one, boxes in zip(found, drawn.boxes, strict=True):
        assert abs(one.boxes[0] - boxes[0] * [3, 2, 3, 2]).max() < 1e-4


def check_boxes_keep_float32_under_autocast() -> None:
    ctx = context("reference", **REFERENCE)
    torch.manual_seed(0)
    net: Any = model.create_model(ctx)
    seen = []
    net.rpn.box_coder.decode_single = _recorded(net.rpn.box_coder.decode_single, seen)
    form = steps._form(ctx)
    pictures = random_pictures(1, (128, 128), form, 91, np.random.default_rng(0))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        losses = net(steps.prepare_batch(ctx, pictures))
    assert seen == [torch.float32]
    assert all(torch.isfinite(loss) for loss in losses.values()), losses


def _recorded(function: Any, seen: list[Any]) -> Any:
    def call(codes: Tensor, boxes: Tensor) -> Tensor:
        seen.append(codes.dtype)
        result: Tensor = function(codes, boxes)
        return result

    return call
