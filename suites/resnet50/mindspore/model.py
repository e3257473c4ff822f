"""The model: ResNet of bottleneck blocks with the stride in the 3x3 convolution, as in torchvision, with its names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mindspore import nn, ops
from mindspore.common.initializer import HeNormal, Uniform

if TYPE_CHECKING:
    from flagperf_driver.mindspore import Context

PLANES = (64, 128, 256, 512)
"""The channels of the four stages at width_per_group = 64, before the expansion."""


class Bottleneck(nn.Cell):  # type: ignore[misc]
    """Three convolutions beside a shortcut."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _convolution(inputs, width, 1, 1), _norm(width)
        self.conv2, self.bn2 = _convolution(width, width, 3, stride), _norm(width)
        self.conv3, self.bn3 = _convolution(width, outputs, 1, 1), _norm(outputs)
        changes = stride > 1 or inputs != outputs
        parts = [_convolution(inputs, outputs, 1, stride), _norm(outputs)] if changes else [nn.Identity()]
        self.downsample = nn.SequentialCell(parts)

    def construct(self, values: Any) -> Any:
        shortcut = self.downsample(values)
        values = ops.relu(self.bn1(self.conv1(values)))
        values = ops.relu(self.bn2(self.conv2(values)))
        return ops.relu(self.bn3(self.conv3(values)) + shortcut)


class ResNet(nn.Cell):  # type: ignore[misc]
    """The network; it takes normalised pixels (N, 3, H, W)."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.conv1, self.bn1 = _convolution(3, 64, 7, 2), _norm(64)
        self.maxpool = nn.MaxPool2d(3, 2, pad_mode="pad", padding=1)
        inputs = 64
        for stage, (planes, blocks) in enumerate(zip(PLANES, config.layers, strict=True), 1):
            width, outputs = planes * config.width_per_group // 64, planes * config.expansion
            parts = [Bottleneck(inputs, width, outputs, 1 if stage == 1 else 2)]
            parts += [Bottleneck(outputs, width, outputs, 1) for _ in range(blocks - 1)]
            setattr(self, f"layer{stage}", nn.SequentialCell(parts))
            inputs = outputs
        uniform = Uniform(inputs**-0.5)
        self.fc = nn.Dense(inputs, config.num_classes, weight_init=uniform, bias_init=uniform)

    def construct(self, values: Any) -> Any:
        values = self.maxpool(ops.relu(self.bn1(self.conv1(values))))
        values = self.layer4(self.layer3(self.layer2(self.layer1(values))))
        return self.fc(values.mean((2, 3)))


def create_model(ctx: Context) -> nn.Cell:
    """Return the network with random weights."""
    return ResNet(ctx.config)


def _convolution(inputs: int, outputs: int, size: int, stride: int) -> nn.Cell:
    initial = HeNormal(mode="fan_out", nonlinearity="relu")
    return nn.Conv2d(inputs, outputs, size, stride, pad_mode="pad", padding=size // 2, weight_init=initial)


def _norm(channels: int) -> nn.Cell:
    return nn.BatchNorm2d(channels, eps=1e-5, momentum=0.9)
