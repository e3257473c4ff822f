"""Checks of EfficientNet's reference data: ImageNet's folders are read and learnt, with all changes of the recipe."""

from __future__ import annotations

from checking import SCRATCH, SUITE, context

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
TINY = trials.TinyData(SUITE, SCRATCH, SMALLER, imagenet.write)
write = TINY.write


def check_imagenet_is_read_and_learnt() -> None:
    TINY.check_learnt(TINY.folder("imagenet"))


def check_each_change_of_the_recipe_has_an_effect() -> None:
    path, config = TINY.folder("recipe"), context("reference").config

    def losses(**settings: object) -> tuple[float, ...]:
        return tuple(TINY.train(path, **settings, max_steps=4, num_workers=0).losses)

    unchanged = losses()
    assert unchanged == losses(), "the control: the same training"
    changed = {losses(**{name: getattr(config, name)}) for name in UNCHANGED}
    assert len({unchanged} | changed) == 1 + len(UNCHANGED), changed
