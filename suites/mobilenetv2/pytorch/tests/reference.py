"""MobileNetV2's reference scale: ImageNet's folders, and a step of the full model."""

from __future__ import annotations

from torchvision.models import mobilenetv2

from tests.suites.tiny_data import imagenet

SMALLER = {
    "width": 0.5, "stages": [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 2, 2]], "num_classes": len(imagenet.CLASSES),
    "image_size": 64, "resize_size": 73, "train_batch_size": 6, "learning_rate": 0.005, "num_workers": 2,
}  # fmt: skip
CUT, write = imagenet.CUT, imagenet.write
PARAMETERS = 3_504_872
"""num_params of torchvision's ``MobileNet_V2_Weights.IMAGENET1K_V1``."""
STEP = {"train_batch_size": 2}
OTHER = {"width": 1.4}


def published() -> mobilenetv2.MobileNetV2:
    return mobilenetv2.mobilenet_v2()
