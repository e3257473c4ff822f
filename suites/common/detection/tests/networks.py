"""Checks of the parts of detectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from checking import SCRATCH, context, raises
from common.detection import networks
from common.detection.networks import FrozenBatchNorm, WeightsError
from torchvision.models.detection._utils import BalancedPositiveNegativeSampler, BoxCoder, Matcher
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


def check_samples_are_as_many_as_the_library_s_and_others_each_time() -> None:
    labels = [torch.tensor(5 * [1] + 40 * [0] + 5 * [-1]), torch.tensor([0, 1, -1]), torch.zeros(9)]
    for size in (4, 8, 40, 64):
        ours, theirs = (kind(size, 0.25) for kind in (networks.Sampler, BalancedPositiveNegativeSampler))
        for masks, expected in zip(ours(labels), theirs(labels), strict=True):
            assert [int(mask.sum()) for mask in masks] == [int(mask.sum()) for mask in expected], size
        for of, positive, negative in zip(labels, *ours(labels), strict=True):
            assert (of[positive] == 1).all()
            assert (of[negative] == 0).all()
    torch.manual_seed(1)
    drawn = torch.stack([networks.Sampler(4, 0.25)(labels)[1][0] for _ in range(400)]).float().mean(0)[5:45]
    assert abs(drawn - 3 / 40).max() < 0.06, "each place is as likely as the others"


def check_matches_are_those_of_the_library() -> None:
    torch.manual_seed(1)
    overlaps = (torch.rand(6, 200) * 10).round() * torch.linspace(0.03, 0.1, 6)[:, None]  # with ties
    for low_quality in (False, True):
        ours, theirs = (kind(0.9, 0.7, low_quality) for kind in (networks.Matcher, Matcher))
        assert torch.equal(ours(overlaps), theirs(overlaps))
    assert not torch.equal(networks.Matcher(0.9, 0.7)(overlaps), theirs(overlaps)), "the control: other matches"


def check_boxes_are_coded_as_by_the_library() -> None:
    torch.manual_seed(1)
    corners = 100 * torch.rand(2, 30, 2)
    boxes, references = torch.cat([corners, corners + 1 + 50 * torch.rand(2, 30, 2)], 2)
    codes = torch.randn(30, 12)
    ours, theirs = (kind((10.0, 10.0, 5.0, 5.0)) for kind in (networks.BoxCoder, BoxCoder))
    assert torch.allclose(ours.encode_single(references, boxes), theirs.encode_single(references, boxes))
    assert torch.allclose(ours.decode_single(codes, boxes), theirs.decode_single(codes, boxes), atol=1e-4)
    assert not torch.allclose(ours.decode_single(codes, boxes), theirs.decode_single(codes, references), atol=1e-4)


def check_heads_return_float32_under_autocast() -> None:
    class Head(networks.FloatOutputs, torch.nn.Linear):
        pass

    with torch.autocast("cpu", torch.bfloat16):
        assert torch.nn.Linear(4, 4)(torch.ones(1, 4)).dtype == torch.bfloat16, "the control: the library's head"
        assert Head(4, 4)(torch.ones(1, 4)).dtype == torch.float32
