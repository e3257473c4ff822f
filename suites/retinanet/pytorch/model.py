"""The model: torchvision's RetinaNet, with the size that the config sets, on batches that are ready."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from common.detection import networks
from common.detection.networks import BoxCoder, Matcher
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.retinanet import RetinaNet, RetinaNetHead
from torchvision.ops import sigmoid_focal_loss
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

if TYPE_CHECKING:
    from collections.abc import Sequence

    from common.detection.steps import Prepared

    from flagperf_driver.pytorch import Context

RATIOS = (0.5, 1.0, 2.0)
SCALES = (1.0, 2 ** (1 / 3), 2 ** (2 / 3))
"""Of the anchors' sizes on each level."""


class Heads(networks.FloatOutputs, RetinaNetHead):
    """Scores and offsets of anchors. Their losses do not wait for the device."""

    def compute_loss(
        self,
        targets: list[dict[str, Tensor]],
        head_outputs: dict[str, Tensor],
        anchors: list[Tensor],
        matched_idxs: list[Tensor],
    ) -> dict[str, Tensor]:
        scores, found = head_outputs["cls_logits"], head_outputs["bbox_regression"]
        matches = torch.stack(matched_idxs)
        positive, none = matches >= 0, matches == Matcher.BETWEEN_THRESHOLDS
        labels, offsets = [], []
        for target, places, boxes in zip(targets, anchors, matches.clamp(min=0), strict=True):
            empty = not len(target["boxes"])
            labels.append(boxes if empty else target["labels"][boxes])
            boxes_of = places if empty else target["boxes"][boxes]
            offsets.append(self.regression_head.box_coder.encode_single(boxes_of, places))
        classes = torch.stack(labels).masked_fill(~positive, -1)
        right = classes[..., None] == torch.arange(scores.shape[2], device=scores.device)
        losses = sigmoid_focal_loss(scores, right.to(scores.dtype)).masked_fill(none[..., None], 0)
        expected = torch.where(positive[..., None], torch.stack(offsets), found.detach())
        counts = positive.sum(1).clamp(min=1)
        return {
            "classification": (losses.sum((1, 2)) / counts).mean(),
            "bbox_regression": ((found - expected).abs().sum((1, 2)) / counts).mean(),
        }


class Detector(RetinaNet):
    """The library's detector without its transformation of pictures."""

    def forward(self, batch: Prepared) -> dict[str, Tensor] | list[dict[str, Tensor]]:
        """Return the losses, or in evaluation the objects of each picture."""
        features = list(self.backbone(batch.pixels).values())
        outputs = self.head(features)
        anchors = self.anchor_generator(ImageList(batch.pixels, batch.sizes), features)
        if self.training:
            losses: dict[str, Tensor] = self.compute_loss(batch.targets(), outputs, anchors)
            return losses
        counts = [level.shape[2] * level.shape[3] * len(SCALES) * len(RATIOS) for level in features]
        levels = {name: list(scores.split(counts, dim=1)) for name, scores in outputs.items()}
        boxes = [list(image_anchors.split(counts)) for image_anchors in anchors]
        detections: list[dict[str, Tensor]] = self.postprocess_detections(levels, boxes, batch.sizes)
        return detections


def anchor_generator(sizes: Sequence[int]) -> AnchorGenerator:
    """Return nine anchors for each place of each level."""
    return AnchorGenerator(
        tuple(tuple(int(size * scale) for scale in SCALES) for size in sizes), (RATIOS,) * len(sizes)
    )


def create_head(ctx: Context) -> Heads:
    """Return the heads for classes and boxes with the initial weights that the config describes."""
    config = ctx.config
    head = Heads(config.fpn_channels, len(SCALES) * len(RATIOS), config.num_classes)
    for part in (head.classification_head, head.regression_head):
        part.conv = part.conv[: config.head_layers]
        for layer in part.conv.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, std=config.head_deviation)
    prior = config.prior_probability
    nn.init.constant_(head.classification_head.cls_logits.bias, -math.log((1 - prior) / prior))
    return head


def create_model(ctx: Context) -> nn.Module:
    """Return the network, with the backbone's weights if the config names a file."""
    channels = ctx.config.fpn_channels
    net = Detector(
        networks.feature_pyramid(ctx, ctx.config.stages, LastLevelP6P7(channels, channels)),
        ctx.config.num_classes,
        anchor_generator=anchor_generator(ctx.config.anchor_sizes),
        head=create_head(ctx),
    )
    net.proposal_matcher.__class__ = Matcher
    net.box_coder.__class__ = net.head.regression_head.box_coder.__class__ = BoxCoder
    return net
