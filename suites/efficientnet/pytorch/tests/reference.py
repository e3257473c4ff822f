"""EfficientNetV2-S's reference scale: ImageNet's folders, and a step of the full model."""

from __future__ import annotations

import checking

from tests.suites import trials
from tests.suites.tiny_data import imagenet

UNCHANGED = {"augment": None, "erase": 0.0, "mixup": 0.0, "cutmix": 0.0, "repeats": 1}
"""The recipe's random changes are too much for 20 steps."""
SMALLER = {
    "stem_channels": 16, "last_channels": 128, "num_classes": len(imagenet.CLASSES), "no_decay": [],
    "stages": [["fused", 1, 1, 16, 1], ["fused", 4, 2, 32, 1], ["depthwise", 4, 2, 48, 1]],
    "image_size": 64, "eval_size": 80, "resize_size": 80,
    "train_batch_size": 12, "learning_rate": 0.02, "lr_warmup": 0, "num_workers": 2, **UNCHANGED,
}  # fmt: skip
CUT = imagenet.CUT
TINY = trials.TinyData(checking.SUITE, checking.SCRATCH, SMALLER, imagenet.write)
write = TINY.write
PARAMETERS = 21_458_488
"""num_params of torchvision's ``EfficientNet_V2_S_Weights.IMAGENET1K_V1``."""
STEP = {"train_batch_size": 4, "repeats": 1, "image_size": 96, "stochastic_depth": 0.0}
"""Small images, and no block that all of the few images skip."""
FROZEN = "features.6.14.block.3.1.weight"


def check_each_change_of_the_recipe_has_an_effect() -> None:
    path, config = TINY.folder("recipe"), checking.context("reference").config

    def losses(**settings: object) -> tuple[float, ...]:
        return tuple(TINY.train(path, **settings, max_steps=4, num_workers=0).losses)

    unchanged = losses()
    assert unchanged == losses(), "the control: the same training"
    changed = {losses(**{name: getattr(config, name)}) for name in UNCHANGED}
    assert len({unchanged} | changed) == 1 + len(UNCHANGED), changed
