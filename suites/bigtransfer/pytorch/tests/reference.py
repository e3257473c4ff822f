"""Big Transfer's reference scale: ImageNet's folders and Google's weights; a step of the full model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import checking
import model
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tests.suites import trials
from tests.suites.tiny_data import imagenet

LAYERS, CHANNELS, STEM, GROUPS, CLASSES = [2, 1, 1, 1], [32, 64, 128, 256], 16, 8, 7
SMALLER = {
    "layers": LAYERS, "channels": CHANNELS, "stem_channels": STEM, "width_factor": 1, "norm_groups": GROUPS,
    "checkpoint_classes": CLASSES, "num_classes": len(imagenet.CLASSES), "image_size": 64, "resize_size": 70,
    "train_batch_size": 12, "learning_rate": 0.01, "lr_warmup": 0, "mixup": 0.0, "num_workers": 2,
}  # fmt: skip
CUT = "backbone_weights/bigtransfer/BiT-M-R152x2.npz"
PARAMETERS = 236_335_208
"""Of timm's ``resnetv2_152x2_bit`` with 1000 classes; 236.34 million in timm's table of results."""
STEP = {
    "layers": [2, 2, 2, 2], "width_factor": 1, "train_batch_size": 2, "image_size": 64, "lr_warmup": 0,
}  # fmt: skip
FROZEN = "stages.3.blocks.0.downsample.conv.weight"
UNIT = "resnet/block1/unit02"
Arrays = dict[str, np.ndarray]


def write(path: Path) -> None:
    """Write the tiny data directory, with weights for the smaller model."""
    imagenet.write(path)
    save(path, google_weights())


def save(path: Path, arrays: Arrays) -> None:
    (path / CUT).parent.mkdir(parents=True, exist_ok=True)
    np.savez(path / CUT, **arrays)


def google_weights() -> Arrays:
    """Make weights with the names and shapes of Google's file: a kernel is height x width x input x output."""
    rng = np.random.default_rng(7)
    arrays: Arrays = {}

    def convolution(name: str, size: int, inputs: int, outputs: int) -> None:
        kernel = rng.normal(0.1, 0.3, (size, size, inputs, outputs))
        arrays[f"{name}/standardized_conv2d/kernel"] = kernel.astype(np.float32)

    def norm(name: str, channels: int) -> None:
        arrays[f"{name}/group_norm/gamma"] = rng.normal(1, 0.1, channels).astype(np.float32)
        arrays[f"{name}/group_norm/beta"] = rng.normal(0, 0.1, channels).astype(np.float32)

    convolution("resnet/root_block", 7, 3, inputs := STEM)
    for block, (units, outputs) in enumerate(zip(LAYERS, CHANNELS, strict=True), 1):
        for number in range(1, units + 1):
            unit, middle = f"resnet/block{block}/unit{number:02d}", outputs // 4
            for part, size, entering, leaving in (
                ("a", 1, inputs, middle), ("b", 3, middle, middle), ("c", 1, middle, outputs)
            ):  # fmt: skip
                convolution(f"{unit}/{part}", size, entering, leaving)
                norm(f"{unit}/{part}", entering)
            if number == 1:
                convolution(f"{unit}/a/proj", 1, inputs, outputs)
            inputs = outputs
    norm("resnet", inputs)
    arrays["resnet/head/conv2d/kernel"] = rng.normal(0, 0.1, (1, 1, inputs, CLASSES)).astype(np.float32)
    arrays["resnet/head/conv2d/bias"] = rng.normal(0, 0.1, CLASSES).astype(np.float32)
    return arrays


def check_the_loaded_model_computes_what_the_weights_mean() -> None:
    path, arrays = checking.SCRATCH / "weights", google_weights()
    save(path, arrays)
    loaded = create_model(path)
    pixels = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        features = loaded.forward_features(pixels)
        assert torch.allclose(features, google_features(arrays, pixels), atol=1e-4)
        assert loaded(pixels).count_nonzero() == 0, "the head is new"
        for name in ("resnet/group_norm/beta", f"{UNIT}/b/standardized_conv2d/kernel", f"{UNIT}/c/group_norm/gamma"):
            changed = {**arrays, name: arrays[name][::-1]}
            assert not torch.allclose(features, google_features(changed, pixels), atol=1e-2), f"the control: {name}"


def create_model(path: Path) -> torch.nn.Module:
    return model.create_model(replace(checking.context("reference", **SMALLER), data_dir=path))


def google_features(arrays: Arrays, x: Tensor) -> Tensor:
    """Compute the features before the head, as the paper's own code does."""

    def convolved(name: str, x: Tensor, stride: int = 1) -> Tensor:
        kernel = torch.from_numpy(arrays[f"{name}/standardized_conv2d/kernel"].copy())
        mean, variance = kernel.mean((0, 1, 2)), kernel.var((0, 1, 2), correction=0)
        standardized = ((kernel - mean) / (variance + 1e-10).sqrt()).permute(3, 2, 0, 1)
        return functional.conv2d(x, standardized, stride=stride, padding=kernel.shape[0] // 2)

    def normed(name: str, x: Tensor) -> Tensor:
        gamma, beta = (torch.from_numpy(arrays[f"{name}/group_norm/{part}"].copy()) for part in ("gamma", "beta"))
        return functional.group_norm(x, GROUPS, gamma, beta).relu()

    x = functional.max_pool2d(functional.pad(convolved("resnet/root_block", x, 2), (1, 1, 1, 1)), 3, 2)
    for block, units in enumerate(LAYERS, 1):
        for number in range(1, units + 1):
            unit, stride = f"resnet/block{block}/unit{number:02d}", 2 if block > 1 and number == 1 else 1
            entering = normed(f"{unit}/a", x)
            shortcut = convolved(f"{unit}/a/proj", entering, stride) if number == 1 else x
            inner = convolved(f"{unit}/b", normed(f"{unit}/b", convolved(f"{unit}/a", entering)), stride)
            x = shortcut + convolved(f"{unit}/c", normed(f"{unit}/c", inner))
    return normed("resnet", x)


def check_a_wrong_checkpoint_is_reported_before_the_training() -> None:
    def refuse(arrays: Arrays | None, *words: str) -> None:
        path = checking.SCRATCH / "wrong weights"
        save(path, arrays or {})
        if arrays is None:
            (path / CUT).unlink()
        trials.fails(lambda: create_model(path), f"/{CUT}", *words)

    arrays = google_weights()
    kernel, bias = f"{UNIT}/a/standardized_conv2d/kernel", "resnet/head/conv2d/bias"
    refuse(None, "file not found", "data directory")
    refuse({name: array for name, array in arrays.items() if name != kernel}, "does not fit the model", kernel)
    refuse({**arrays, kernel: arrays[kernel][..., :4]}, "does not fit the model", "size of tensor")
    refuse({**arrays, bias: arrays[bias][:3]}, "the head has 3 classes", f"expected {CLASSES}")
    path = checking.SCRATCH / "damaged weights"
    save(path, arrays)
    whole = (path / CUT).read_bytes()
    for content in (whole[:900], whole[: len(whole) // 2] + bytes(99) + whole[len(whole) // 2 + 99 :], b"<html>", b""):
        (path / CUT).write_bytes(content)
        trials.fails(lambda: create_model(path), f"/{CUT}", "cannot be read", "copy the file again")
