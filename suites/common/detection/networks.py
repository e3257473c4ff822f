"""Parts of detectors: a ResNet with a feature pyramid, and torchvision's two-stage detectors on batches of few shapes.

They read these config keys: ``layers``, ``width_per_group``, ``expansion``, ``norm``, ``trainable_layers``,
``fpn_channels`` and ``init_checkpoint``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map
from torchvision.models.detection import _utils as det_utils
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork
from torchvision.models.resnet import Bottleneck, ResNet
from torchvision.ops import MultiScaleRoIAlign, box_iou, clip_boxes_to_image, nms, roi_align
from torchvision.ops.feature_pyramid_network import ExtraFPNBlock
from torchvision.ops.misc import FrozenBatchNorm2d
from torchvision.ops.poolers import LevelMapper

if TYPE_CHECKING:
    from common.detection.steps import Prepared
    from flagperf_driver.pytorch import Context

STAGES = ("layer4", "layer3", "layer2", "layer1", "conv1")
"""In the order in which ``trainable_layers`` counts them."""
FIRST_STRIDE = 4
"""Pixels between two places of the first stage's features."""
GROUPS = 8
LEAST_SIDE = 1e-3
"""Of a proposal, in pixels, as in the library."""


class WeightsError(ValueError):
    """The file does not contain the backbone's weights."""


class FrozenBatchNorm(FrozenBatchNorm2d):
    """Keeps the input's precision: the library's own layer makes float32 of bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale.to(x.dtype)[:, None, None] + shift.to(x.dtype)[:, None, None]


NORMS: dict[str, Callable[[int], nn.Module]] = {"frozen": FrozenBatchNorm, "group": partial(nn.GroupNorm, GROUPS)}


def feature_pyramid(ctx: Context, stages: Sequence[int], extra: ExtraFPNBlock) -> BackboneWithFPN:
    """Return a ResNet whose stages, from 1 to 4, and an extra block give a pyramid of features."""
    config = ctx.config
    if config.norm not in NORMS:
        raise ValueError(f"norm={config.norm!r}: unknown; expected {' or '.join(map(repr, NORMS))}")
    block = type("Bottleneck", (Bottleneck,), {"expansion": config.expansion})
    body = ResNet(block, config.layers, width_per_group=config.width_per_group, norm_layer=NORMS[config.norm])
    if config.init_checkpoint and not ctx.synthetic:
        if ctx.data_dir is None:
            raise WeightsError(f"init_checkpoint = {config.init_checkpoint!r} needs data_dir; pass --data-dir")
        load_weights(body, ctx.data_dir / config.init_checkpoint)
    freeze(body, config.trainable_layers)
    names = {f"layer{stage}": str(place) for place, stage in enumerate(stages)}
    channels = [64 * config.expansion * 2 ** (stage - 1) for stage in stages]
    return BackboneWithFPN(body, names, channels, config.fpn_channels, extra)


def freeze(body: ResNet, trainable_layers: int) -> None:
    """Train only the last stages; 5: all of the network."""
    trained = (*STAGES[:trainable_layers], *(("bn1",) if trainable_layers == len(STAGES) else ()))
    for name, parameter in body.named_parameters():
        parameter.requires_grad_(name.startswith(trained))


def load_weights(body: ResNet, path: Path) -> None:
    """Load the weights of a classifier, except those of its last layer."""
    if not path.is_file():
        raise WeightsError(f"{path}: file not found; init_checkpoint is a path relative to the data directory")
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises several types for a damaged file
        raise WeightsError(f"{path}: torch cannot read this file: {error}; copy the file again") from error
    if not isinstance(stored, Mapping):
        raise WeightsError(f"{path}: expected a state dict of tensors by name; got a {type(stored).__name__}")
    expected = {name: tensor for name, tensor in body.state_dict().items() if not name.startswith("fc.")}
    wrong = [name for name, tensor in expected.items() if getattr(stored.get(name), "shape", None) != tensor.shape]
    # A frozen norm has no counter of batches.
    unknown = [name for name in stored.keys() - expected.keys() if not name.startswith("fc.")]
    unknown = [name for name in unknown if not name.endswith("num_batches_tracked")]
    if wrong or unknown:
        names = ", ".join(sorted([*wrong, *unknown])[:8])
        raise WeightsError(
            f"{path} does not fit the backbone: {len(wrong)} tensors missing or of another shape, {len(unknown)} "
            f"unexpected: {names}; use torchvision's ResNet-50"
        )
    body.load_state_dict({name: stored[name] for name in expected}, strict=False)


class Pool(MultiScaleRoIAlign):
    """Takes the scales from the batch's shape: its pictures may be much smaller. Waits for the device once."""

    channels_last = False
    """Whether the result keeps the features' layout, which convolutions need; else it is contiguous."""

    def forward(self, x: dict[str, Tensor], boxes: list[Tensor], image_shapes: list[tuple[int, int]]) -> Tensor:  # noqa: ARG002
        return self.pooled(x, numbers_of(boxes), torch.cat(boxes))

    def pooled(self, x: dict[str, Tensor], numbers: Tensor, boxes: Tensor) -> Tensor:
        """Return the features of the boxes, whose pictures have these numbers."""
        features = [x[name] for name in self.featmap_names]
        first = int(math.log2(FIRST_STRIDE))
        levels = LevelMapper(first, first + len(features) - 1, self.canonical_scale, self.canonical_level)([boxes])
        counts = (levels[:, None] == torch.arange(len(features), device=levels.device)).sum(0)
        regions = torch.cat([numbers[:, None].to(boxes.dtype), boxes], dim=1)
        last = self.channels_last and features[0].is_contiguous(memory_format=torch.channels_last)
        pooled = torch.empty(
            (len(regions), features[0].shape[1], *self.output_size),
            dtype=features[0].dtype,
            device=features[0].device,
            memory_format=torch.channels_last if last else torch.contiguous_format,
        )
        for level, chosen in enumerate(levels.argsort().split(counts.tolist())):
            scale = 1 / (FIRST_STRIDE * 2**level)
            values = roi_align(features[level], regions[chosen], self.output_size, scale, self.sampling_ratio)
            pooled[chosen] = values.to(pooled.dtype)
        return pooled


def numbers_of(boxes: list[Tensor]) -> Tensor:
    """Return for each box the number of its picture."""
    return torch.cat([places.new_full((len(places),), number, dtype=torch.long) for number, places in enumerate(boxes)])


class FloatOutputs(nn.Module):
    """Makes float32 of what the next base class returns under autocast: coordinates of boxes need its precision."""

    def forward(self, *inputs: Any) -> Any:
        return tree_map(lambda output: output.float(), super().forward(*inputs))


def two_stage(net: GeneralizedRCNN, batch: Prepared) -> dict[str, Tensor] | list[dict[str, Tensor]]:
    """Return the losses, or in evaluation what the model found: the library's forward pass of a ready batch."""
    features = net.backbone(batch.pixels)
    images = ImageList(batch.pixels, batch.sizes)
    if not net.training:
        found: list[dict[str, Tensor]] = net.roi_heads(features, net.rpn(images, features)[0], batch.sizes)[0]
        return found
    proposals, losses = net.rpn(images, features, batch.targets())
    return {**losses, **net.roi_heads.losses(features, proposals, batch)}


# -- the library's parts without most of its waits for the device -----------------------------------------------


def replace_waiting_parts(net: GeneralizedRCNN) -> None:
    """Replace the methods of the library's parts that wait for the device; modules and settings stay."""
    for part, kind in ((net.rpn, Proposals), (net.roi_heads, ObjectHeads)):
        part.__class__ = kind
        part.proposal_matcher.__class__ = Matcher
        part.fg_bg_sampler.__class__ = Sampler
        part.box_coder.__class__ = BoxCoder


class Matcher(det_utils.Matcher):
    """Finds the box of each place."""

    def __call__(self, match_quality_matrix: Tensor) -> Tensor:
        overlaps, boxes = match_quality_matrix.max(0)
        matches = boxes.masked_fill(overlaps < self.high_threshold, self.BETWEEN_THRESHOLDS)
        matches = matches.masked_fill(overlaps < self.low_threshold, self.BELOW_LOW_THRESHOLD)
        if self.allow_low_quality_matches:  # a box also has the places that overlap most with it, however little
            best = (match_quality_matrix == match_quality_matrix.amax(1, keepdim=True)).any(0)
            matches = torch.where(best, boxes, matches)
        return matches


class Sampler(det_utils.BalancedPositiveNegativeSampler):
    """Draws the places that count in a loss, as masks: those with the greatest random numbers."""

    def __call__(self, matched_idxs: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        masks = [self._drawn(labels) for labels in matched_idxs]
        return [positive for positive, _ in masks], [negative for _, negative in masks]

    def _drawn(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        positive = _greatest(labels >= 1, int(self.batch_size_per_image * self.positive_fraction))
        left = self.batch_size_per_image - positive.sum()
        return positive, _greatest(labels == 0, self.batch_size_per_image, left)


def _greatest(among: Tensor, most: int, left: Tensor | None = None) -> Tensor:
    """Return a mask of random places of ``among``: at most ``most``, and ``left``, which only the device knows."""
    keys = torch.rand(among.shape, device=among.device).masked_fill(~among, -1)
    values, places = keys.topk(min(most, len(keys)))
    drawn = values >= 0
    if left is not None:
        drawn &= torch.arange(len(places), device=places.device) < left
    return torch.zeros_like(among).scatter(0, places, drawn)


class BoxCoder(det_utils.BoxCoder):
    """Keeps its constants on the host; the library copies them to the device."""

    def encode_single(self, reference_boxes: Tensor, proposals: Tensor) -> Tensor:
        encoded: Tensor = det_utils.encode_boxes(reference_boxes, proposals, self.weights)
        return encoded

    def decode_single(self, rel_codes: Tensor, boxes: Tensor) -> Tensor:
        x, y, width, height = (rel_codes[:, place::4] / weight for place, weight in enumerate(self.weights))
        left, top, right, bottom = boxes.to(rel_codes.dtype)[..., None].unbind(1)
        across = width.clamp(max=self.bbox_xform_clip).exp() * (right - left) / 2
        down = height.clamp(max=self.bbox_xform_clip).exp() * (bottom - top) / 2
        x = x * (right - left) + (left + 0.5 * (right - left))
        y = y * (bottom - top) + (top + 0.5 * (bottom - top))
        return torch.stack([x - across, y - down, x + across, y + down], dim=2).flatten(1)


class Proposals(RegionProposalNetwork):
    """Training waits once for each picture, in ``nms``."""

    def assign_targets_to_anchors(
        self, anchors: list[Tensor], targets: list[dict[str, Tensor]]
    ) -> tuple[list[Tensor], list[Tensor]]:
        labels, boxes = [], []
        for places, target in zip(anchors, targets, strict=True):
            if not len(target["boxes"]):
                labels.append(places.new_zeros(len(places)))
                boxes.append(places)
                continue
            matches = self.proposal_matcher(box_iou(target["boxes"], places))
            labels.append((matches >= 0).float() - (matches == Matcher.BETWEEN_THRESHOLDS).float())
            boxes.append(target["boxes"][matches.clamp(min=0)])
        return labels, boxes

    def filter_proposals(
        self,
        proposals: Tensor,
        objectness: Tensor,
        image_shapes: list[tuple[int, int]],
        num_anchors_per_level: list[int],
    ) -> tuple[list[Tensor], list[Tensor]]:
        if not self.training:
            return super().filter_proposals(proposals, objectness, image_shapes, num_anchors_per_level)
        objectness = objectness.detach().reshape(len(proposals), -1)
        best = self._get_top_n_idx(objectness, num_anchors_per_level)
        proposals = proposals.gather(1, best[..., None].expand(-1, -1, 4))
        scores = objectness.gather(1, best).sigmoid()
        counts = [min(count, self.pre_nms_top_n()) for count in num_anchors_per_level]
        levels = torch.cat([scores.new_full((count, 1), level) for level, count in enumerate(counts)])
        found = []
        for boxes, box_scores, size in zip(proposals, scores, image_shapes, strict=True):
            clipped = clip_boxes_to_image(boxes, size)
            # Too small boxes come last and suppress no other; the heads leave them out.
            ordered = box_scores.masked_fill(_too_small(clipped), -1)
            apart = clipped + levels * (max(size) + 1)  # boxes of two levels do not overlap
            found.append(clipped[nms(apart, ordered, self.nms_thresh)[: self.post_nms_top_n()]])
        return found, []

    def compute_loss(
        self,
        objectness: Tensor,
        pred_bbox_deltas: Tensor,
        labels: list[Tensor],
        regression_targets: list[Tensor],
    ) -> tuple[Tensor, Tensor]:
        positive, negative = (torch.cat(masks) for masks in self.fg_bg_sampler(labels))
        drawn = positive | negative
        losses = functional.binary_cross_entropy_with_logits(objectness.flatten(), torch.cat(labels), reduction="none")
        boxes = _box_loss(pred_bbox_deltas, torch.cat(regression_targets), positive)
        return losses.masked_fill(~drawn, 0).sum() / drawn.sum(), boxes / drawn.sum()


class Samples(NamedTuple):
    """The proposals in the losses of all pictures. The host knows their number, so some may be empty."""

    proposals: list[Tensor]
    """By picture."""
    matches: Tensor
    """The box of each, a number in its picture."""
    labels: Tensor
    """0: the background; -1: nothing."""
    offsets: Tensor
    """From each proposal to its box."""


class ObjectHeads(RoIHeads):
    """Training waits only in the pools."""

    def losses(self, features: dict[str, Tensor], proposals: list[Tensor], batch: Prepared) -> dict[str, Tensor]:
        """Return the losses of the classes and boxes."""
        return self.losses_of(features, self.samples(proposals, batch.targets()), batch)

    def losses_of(self, features: dict[str, Tensor], samples: Samples, batch: Prepared) -> dict[str, Tensor]:
        """Return the losses of these samples."""
        pooled = self.box_roi_pool(features, samples.proposals, batch.sizes)
        scores, offsets = self.box_predictor(self.box_head(pooled))
        labels = samples.labels
        own = offsets.unflatten(1, (-1, 4)).gather(1, labels.clamp(min=0)[:, None, None].expand(-1, 1, 4))[:, 0]
        boxes = _box_loss(own, samples.offsets, labels > 0) / (labels >= 0).sum()
        return {"loss_classifier": functional.cross_entropy(scores, labels, ignore_index=-1), "loss_box_reg": boxes}

    def samples(self, proposals: list[Tensor], targets: list[dict[str, Tensor]]) -> Samples:
        """Draw from the proposals and the true boxes."""
        rows = []
        for places, target in zip(proposals, targets, strict=True):
            places = torch.cat([places, target["boxes"]])
            matches, labels = self._matched(places, target)
            positive, negative = (masks[0] for masks in self.fg_bg_sampler([labels]))
            most = min(self.fg_bg_sampler.batch_size_per_image, len(places))
            drawn, chosen = (2 * positive.int() + negative.int()).topk(most)
            places, matches, labels = places[chosen], matches[chosen], labels[chosen].masked_fill(drawn == 0, -1)
            boxes = target["boxes"][matches] if len(target["boxes"]) else places
            rows.append((places, matches, labels, self.box_coder.encode_single(boxes, places)))
        drawn_places, *others = zip(*rows, strict=True)
        return Samples(list(drawn_places), *map(torch.cat, others))

    def _matched(self, places: Tensor, target: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the box of each place, and its class: 0 for the background, -1 for none."""
        small = _too_small(places)
        if not len(target["boxes"]):
            nothing = torch.zeros_like(small, dtype=torch.long)
            return nothing, nothing.masked_fill(small, -1)
        matches = self.proposal_matcher(box_iou(target["boxes"], places))
        none, boxes = small | (matches == Matcher.BETWEEN_THRESHOLDS), matches.clamp(min=0)
        labels = target["labels"][boxes].masked_fill(matches == Matcher.BELOW_LOW_THRESHOLD, 0)
        return boxes, labels.masked_fill(none, -1)


def _box_loss(found: Tensor, expected: Tensor, chosen: Tensor) -> Tensor:
    """Return the sum of the chosen boxes' errors; the other boxes have no error and no gradient."""
    expected = torch.where(chosen[:, None], expected, found.detach())
    return functional.smooth_l1_loss(found, expected, beta=1 / 9, reduction="sum")


def _too_small(boxes: Tensor) -> Tensor:
    return (boxes[:, 2:] - boxes[:, :2] < LEAST_SIDE).any(1)
