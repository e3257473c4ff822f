"""Parts of detectors: a ResNet with a feature pyramid, and torchvision's two-stage detectors on batches of few shapes.

They read these config keys: ``layers``, ``width_per_group``, ``expansion``, ``norm``, ``trainable_layers``,
``fpn_channels`` and ``init_checkpoint``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.image_list import ImageList
from torchvision.models.resnet import Bottleneck, ResNet
from torchvision.ops import MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import ExtraFPNBlock
from torchvision.ops.misc import FrozenBatchNorm2d

if TYPE_CHECKING:
    from common.detection.steps import Prepared
    from flagperf_driver.pytorch import Context

STAGES = ("layer4", "layer3", "layer2", "layer1", "conv1")
"""In the order in which ``trainable_layers`` counts them."""
FIRST_STRIDE = 4
"""Pixels between two places of the first stage's features."""
GROUPS = 8


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
    """Takes the scales from the batch's shape: its pictures may be much smaller."""

    def forward(self, x: dict[str, Tensor], boxes: list[Tensor], image_shapes: list[tuple[int, int]]) -> Tensor:
        height, width = x[self.featmap_names[0]].shape[-2:]
        return super().forward(x, boxes, [(FIRST_STRIDE * height, FIRST_STRIDE * width)] * len(image_shapes))


class FloatOutputs(nn.Module):
    """Makes float32 of what the next base class returns under autocast: coordinates of boxes need its precision."""

    def forward(self, *inputs: Any) -> Any:
        return tree_map(lambda output: output.float(), super().forward(*inputs))


def two_stage(net: GeneralizedRCNN, batch: Prepared) -> dict[str, Tensor] | list[dict[str, Tensor]]:
    """Return the losses, or in evaluation what the model found: the library's forward pass of a ready batch."""
    targets = batch.targets() if net.training else None
    features = net.backbone(batch.pixels)
    proposals, losses = net.rpn(ImageList(batch.pixels, batch.sizes), features, targets)
    found, further = net.roi_heads(features, proposals, batch.sizes, targets)
    return {**losses, **further} if net.training else found
