"""The model: torchvision's Mask R-CNN, with the size that the config sets, on batches that are ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from common.detection import networks
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNN, MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import maskrcnn_loss
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

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

    channels_last = True


class Heads(networks.ObjectHeads):
    """Also has the loss of the masks, which cover boxes instead of pictures."""

    def losses(self, features: dict[str, Tensor], proposals: list[Tensor], batch: Prepared) -> dict[str, Tensor]:
        """Return the losses of the proposals' classes, boxes and masks."""
        samples = self.samples(proposals, batch.targets())
        # The only further wait: masks of the background would cost more than it does.
        positive = torch.where(samples.labels > 0)[0]
        numbers, matches = networks.numbers_of(samples.proposals)[positive], samples.matches[positive]
        objects = torch.cat(samples.proposals)[positive]
        logits = self.mask_predictor(self.mask_head(self.mask_roi_pool.pooled(features, numbers, objects)))
        assert batch.masks is not None
        places = in_boxes(objects, batch.boxes[numbers, matches], batch.masks.shape[-1])
        most = max(batch.counts)
        masks, classes = batch.masks[:, :most].flatten(0, 1), batch.labels[:, :most].flatten()
        loss = maskrcnn_loss(logits, [places], [masks], [classes], [numbers * most + matches])
        return {**self.losses_of(features, samples, batch), "loss_mask": loss}


class Detector(MaskRCNN):
    """The library's detector without its transformation of pictures."""

    def forward(self, batch: Prepared) -> dict[str, Tensor] | list[dict[str, Tensor]]:
        """Return the losses, or in evaluation the objects of each picture."""
        return networks.two_stage(self, batch)


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
    net = Detector(
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
    networks.replace_waiting_parts(net)
    # MaskRCNN creates its heads itself: they keep their parts, and get the class with our loss of the masks.
    net.roi_heads.__class__ = Heads
    return net
