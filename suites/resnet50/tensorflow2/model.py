"""The model: ResNet of bottleneck blocks with the stride in the 3x3 convolution, as in torchvision, with its names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
from keras import layers

if TYPE_CHECKING:
    from flagperf_driver.tensorflow2 import Context

PLANES = (64, 128, 256, 512)
"""The channels of the four stages at width_per_group = 64, before the expansion."""


def create_model(ctx: Context) -> keras.Model:
    """Return the network with random weights; it takes normalised pixels (N, H, W, 3)."""
    config = ctx.config
    pixels = keras.Input((None, None, 3))
    values = _normed(_convolution(pixels, 64, 7, 2, "conv1"), "bn1", relu=True)
    values = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(values))  # no value is below 0
    for stage, (planes, blocks) in enumerate(zip(PLANES, config.layers, strict=True), 1):
        for block in range(blocks):
            stride = 2 if stage > 1 and block == 0 else 1
            values = _bottleneck(values, planes, stride, config, f"layer{stage}.{block}")
    values = layers.GlobalAveragePooling2D()(values)
    inputs = values.shape[-1]
    uniform = keras.initializers.RandomUniform(-(inputs**-0.5), inputs**-0.5)
    scores = layers.Dense(config.num_classes, kernel_initializer=uniform, bias_initializer=uniform, name="fc")
    return keras.Model(pixels, layers.Activation("linear", dtype="float32")(scores(values)))


def _bottleneck(values: Any, planes: int, stride: int, config: Any, name: str) -> Any:
    width, outputs = planes * config.width_per_group // 64, planes * config.expansion
    shortcut = values
    if stride > 1 or values.shape[-1] != outputs:
        shortcut = _normed(_convolution(values, outputs, 1, stride, f"{name}.downsample.0"), f"{name}.downsample.1")
    values = _normed(_convolution(values, width, 1, 1, f"{name}.conv1"), f"{name}.bn1", relu=True)
    values = _normed(_convolution(values, width, 3, stride, f"{name}.conv2"), f"{name}.bn2", relu=True)
    values = _normed(_convolution(values, outputs, 1, 1, f"{name}.conv3"), f"{name}.bn3")
    return layers.ReLU()(layers.Add()([values, shortcut]))


def _convolution(values: Any, outputs: int, size: int, stride: int, name: str) -> Any:
    if size > 1:
        values = layers.ZeroPadding2D(size // 2)(values)  # Keras pads one side only if the stride is 2
    initial = keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
    return layers.Conv2D(outputs, size, stride, use_bias=False, kernel_initializer=initial, name=name)(values)


def _normed(values: Any, name: str, *, relu: bool = False) -> Any:
    values = layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=name)(values)
    return layers.ReLU()(values) if relu else values
