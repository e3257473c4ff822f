"""The model: torchvision's Mask R-CNN, with the size that the config sets, on batches that are ready."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from common.detection import networks
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNN, MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import fastrcnn_loss, maskrcnn_loss
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops import roi_align
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool
from torchvision.ops.poolers import LevelMapper

if TYPE_CHECKING:
    from common.detection.steps import Prepared

    from flagperf_driver.pytorch import Context

RATIOS = (0.5, 1.0, 2.0)
SAMPLING_RATIO = 2
"""Of the pooling of features: 2 x 2 points for each value."""


class AnchorScores(networks.FloatOutputs, RPNHead):
    """Scores and offsets of anchors."""


class BoxScores(networks.FloatOutputs, FastRCNNPredictor):
    """Scores and offsets of proposals."""


class MaskScores(networks.FloatOutputs, MaskRCNNPredictor):
    """Scores of the points of masks."""


class MaskPool(networks.Pool):
    """Writes the features in the layout that the convolutions after it need; the library's would have to be copied."""

    def forward(self, x: dict[str, Tensor], boxes: list[Tensor], image_shapes: list[tuple[int, int]]) -> Tensor:  # noqa: ARG002
        features = [x[name] for name in self.featmap_names]
        first = int(math.log2(networks.FIRST_STRIDE))
        levels = LevelMapper(first, first + len(features) - 1, self.canonical_scale, self.canonical_level)(boxes)
        numbers = [torch.full_like(image_boxes[:, :1], image) for image, image_boxes in enumerate(boxes)]
        regions = torch.cat([torch.cat(numbers), torch.cat(boxes)], dim=1)
        last = features[0].is_contiguous(memory_format=torch.channels_last)
        pooled = torch.empty(
            (len(regions), features[0].shape[1], *self.output_size),
            dtype=features[0].dtype,
            device=features[0].device,
            memory_format=torch.channels_last if last else torch.contiguous_format,
        )
        for level, feature in enumerate(features):
            chosen = torch.where(levels == level)[0]
            scale = 1 / (networks.FIRST_STRIDE * 2**level)
            values = roi_align(feature, regions[chosen], self.output_size, scale, self.sampling_ratio)
            pooled[chosen] = values.to(pooled.dtype)
        return pooled


class Detector(MaskRCNN):
    """The library's detector without its transformation of pictures; masks cover boxes instead of pictures."""

    def forward(self, batch: Prepared) -> dict[str, Tensor] | list[dict[str, Tensor]]:
        """Return the losses, or in evaluation the objects of each picture."""
        if not self.training:
            return networks.two_stage(self, batch)
        targets = batch.targets()
        features = self.backbone(batch.pixels)
        proposals, losses = self.rpn(ImageList(batch.pixels, batch.sizes), features, targets)
        return {**losses, **self._losses(features, proposals, batch, targets)}

    def _losses(
        self, features: dict[str, Tensor], proposals: list[Tensor], batch: Prepared, targets: list[dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Return the losses of the proposals' classes, boxes and masks."""
        heads = self.roi_heads
        proposals, matches, labels, regressions = heads.select_training_samples(proposals, targets)
        pooled = heads.box_roi_pool(features, proposals, batch.sizes)
        class_loss, box_loss = fastrcnn_loss(*heads.box_predictor(heads.box_head(pooled)), labels, regressions)
        positives = [torch.where(image_labels > 0)[0] for image_labels in labels]
        objects = [proposal[chosen] for proposal, chosen in zip(proposals, positives, strict=True)]
        matches = [match[chosen] for match, chosen in zip(matches, positives, strict=True)]
        logits = heads.mask_predictor(heads.mask_head(heads.mask_roi_pool(features, objects, batch.sizes)))
        masks = [target["masks"] for target in targets]
        places = [
            in_boxes(boxes, target["boxes"][match], target["masks"].shape[-1])
            for boxes, target, match in zip(objects, targets, matches, strict=True)
        ]
        mask_loss = maskrcnn_loss(logits, places, masks, [target["labels"] for target in targets], matches)
        return {"loss_classifier": class_loss, "loss_box_reg": box_loss, "loss_mask": mask_loss}


def in_boxes(places: Tensor, boxes: Tensor, points: int) -> Tensor:
    """Return places of a picture in the coordinates of masks with points x points over the boxes."""
    corners, sides = boxes[:, :2], boxes[:, 2:] - boxes[:, :2]
    return (places - corners.repeat(1, 2)) * (points / sides).repeat(1, 2)


def create_model(ctx: Context) -> nn.Module:
    """Return the network, with the backbone's weights if the config names a file."""
    config, channels = ctx.config, ctx.config.fpn_channels
    sizes = tuple((size,) for size in config.anchor_sizes)
    levels = [str(place) for place in range(len(config.stages))]
    anchors = AnchorGenerator(sizes, (RATIOS,) * len(sizes))
    return Detector(
        networks.feature_pyramid(ctx, config.stages, LastLevelMaxPool()),
        rpn_anchor_generator=anchors,
        rpn_head=AnchorScores(channels, anchors.num_anchors_per_location()[0]),
        rpn_pre_nms_top_n_train=config.train_proposals,
        rpn_post_nms_top_n_train=config.train_proposals,
        rpn_pre_nms_top_n_test=config.eval_proposals,
        rpn_post_nms_top_n_test=config.eval_proposals,
        rpn_batch_size_per_image=config.anchor_samples,
        box_roi_pool=networks.Pool(levels, config.pool_size, SAMPLING_RATIO),
        box_head=TwoMLPHead(channels * config.pool_size**2, config.head_width),
        box_predictor=BoxScores(config.head_width, config.num_classes),
        box_batch_size_per_image=config.box_samples,
        mask_roi_pool=MaskPool(levels, config.mask_pool_size, SAMPLING_RATIO),
        mask_head=MaskRCNNHeads(channels, config.mask_layers, 1),
        mask_predictor=MaskScores(config.mask_layers[-1], config.mask_layers[-1], config.num_classes),
    )
