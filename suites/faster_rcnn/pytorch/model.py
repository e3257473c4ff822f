"""The model: torchvision's Faster R-CNN, with the size that the config sets, on batches that are ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.detection import networks
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FasterRCNN, FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

if TYPE_CHECKING:
    from common.detection.steps import Prepared

    from flagperf_driver.pytorch import Context

RATIOS = (0.5, 1.0, 2.0)


class AnchorScores(networks.FloatOutputs, RPNHead):
    """Scores and offsets of anchors."""


class BoxScores(networks.FloatOutputs, FastRCNNPredictor):
    """Scores and offsets of proposals."""


class Detector(FasterRCNN):
    """The library's detector without its transformation of pictures."""

    def forward(self, batch: Prepared) -> dict[str, Tensor] | list[dict[str, Tensor]]:
        """Return the losses, or in evaluation the objects of each picture."""
        return networks.two_stage(self, batch)


def create_model(ctx: Context) -> nn.Module:
    """Return the network, with the backbone's weights if the config names a file."""
    config, channels = ctx.config, ctx.config.fpn_channels
    sizes = tuple((size,) for size in config.anchor_sizes)
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
        box_roi_pool=networks.Pool(
            [str(place) for place in range(len(config.stages))], config.pool_size, sampling_ratio=2
        ),
        box_head=TwoMLPHead(channels * config.pool_size**2, config.head_width),
        box_predictor=BoxScores(config.head_width, config.num_classes),
        box_batch_size_per_image=config.box_samples,
    )
    networks.replace_waiting_parts(net)
    return net
