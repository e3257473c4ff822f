"""Checks of the parts of detectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from checking import SCRATCH, context, raises
from common.detection import networks
from common.detection.networks import FrozenBatchNorm, WeightsError
from torchvision.models.resnet import Bottleneck, ResNet
from torchvision.ops import MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool
from torchvision.ops.misc import FrozenBatchNorm2d


def resnet(**settings: Any) -> ResNet:
    return ResNet(Bottleneck, [1, 1, 1, 1], **settings)


def check_the_weights_of_a_classifier_are_loaded() -> None:
    path = SCRATCH / "weights.pth"
    classifier = resnet()
    for buffer in classifier.buffers():
        buffer.copy_(torch.rand(buffer.shape) + 1)  # statistics that are not those of a new layer
    torch.save(classifier.state_dict(), path)
    body = resnet(norm_layer=FrozenBatchNorm)
    pixels = torch.rand(1, 3, 64, 64)
    body.fc = classifier.fc
    assert not torch.allclose(body(pixels), classifier.eval()(pixels)), "the control: other weights"
    networks.load_weights(body, path)
    assert torch.allclose(body(pixels), classifier(pixels), rtol=1e-4, atol=1e-4)


def check_wrong_weights_are_named_with_the_fix() -> None:
    body = resnet(norm_layer=FrozenBatchNorm)

    def wrong(content: Any, *words: str) -> None:
        path = SCRATCH / "wrong.pth"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            torch.save(content, path)
        raises(WeightsError, lambda: networks.load_weights(body, path), str(path), *words)

    raises(WeightsError, lambda: networks.load_weights(body, Path("nowhere.pth")), "nowhere.pth", "file not found")
    wrong(b"no weights", "torch cannot read this file", "copy the file again")
    wrong([1, 2], "expected a state dict", "list")
    weights = resnet().state_dict()
    weights.pop("layer1.0.conv1.weight")
    wrong(weights, "1 tensors missing", "layer1.0.conv1.weight")
    wrong({**resnet().state_dict(), "layer5.weight": torch.zeros(1)}, "1 unexpected", "layer5.weight")
    wrong(resnet(width_per_group=32).state_dict(), "of another shape", "ResNet-50")
    ctx = replace(context(init_checkpoint="weights.pth"), data_dir=None)
    pool = LastLevelMaxPool()
    raises(WeightsError, lambda: networks.feature_pyramid(ctx, [1], pool), "weights.pth", "--data-dir")


def check_the_first_stages_are_frozen() -> None:
    body = resnet(norm_layer=FrozenBatchNorm)
    expected = {3: {"layer2", "layer3", "layer4"}, 5: {"conv1", "layer1", "layer2", "layer3", "layer4"}, 0: set()}
    for layers, names in expected.items():
        networks.freeze(body, layers)
        assert {name.split(".")[0] for name, one in body.named_parameters() if one.requires_grad} == names


def check_a_frozen_norm_equals_the_library_s_and_keeps_the_precision() -> None:
    ours, theirs = FrozenBatchNorm(4), FrozenBatchNorm2d(4)
    for buffer in theirs.buffers():
        buffer.copy_(torch.rand(4) + 0.5)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 4, 3, 3)
    assert torch.allclose(ours(x), theirs(x), atol=1e-6)
    assert ours(x.bfloat16()).dtype == torch.bfloat16
    assert theirs(x.bfloat16()).dtype == torch.float32, "the control: the library's norm returns float32"


def check_a_small_picture_in_a_large_shape_is_pooled_at_its_place() -> None:
    features = {str(level): torch.rand(1, 2, 64 >> level, 64 >> level) for level in range(3)}
    boxes, sizes = [torch.tensor([[4.0, 4.0, 40.0, 40.0]])], [(70, 250)]  # in a batch of 256 x 256
    names = list(features)
    expected = MultiScaleRoIAlign(names, 5, 2)(features, boxes, [(256, 256)])
    assert torch.equal(networks.Pool(names, 5, 2)(features, boxes, sizes), expected)
    library = MultiScaleRoIAlign(names, 5, 2)(features, boxes, sizes)
    assert not torch.equal(library, expected), "the control: the library takes the scales from the picture"


def check_heads_return_float32_under_autocast() -> None:
    class Head(networks.FloatOutputs, torch.nn.Linear):
        pass

    with torch.autocast("cpu", torch.bfloat16):
        assert torch.nn.Linear(4, 4)(torch.ones(1, 4)).dtype == torch.bfloat16, "the control: the library's head"
        assert Head(4, 4)(torch.ones(1, 4)).dtype == torch.float32
