"""ResNet-50's reference scale: ImageNet's folders, and a step of the full model."""

from __future__ import annotations

from tests.suites.tiny_data import imagenet

SMALLER = {**imagenet.RESNET, "learning_rate": 0.02, "lr_schedule": "constant"}
CUT, write = imagenet.CUT, imagenet.write
PARAMETERS = 25_557_032
"""num_params of torchvision's ``ResNet50_Weights.IMAGENET1K_V1``."""
STEP = {"train_batch_size": 2}
FROZEN = "layer4.2.bn3.gamma"
