"""Checks of the random changes of training pictures, and of mixed batches."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from checking import SCRATCH, context, raises
from common.images import augment, folders, sources, steps
from common.images.folders import ImagesError
from common.images.mixing import Mix, Mixed
from common.shares import Draw
from PIL import Image
from torch.nn import functional

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NAMES = ("randaugment", "trivialaugment", "rand-m9-mstd0.5-inc1")
SIZE = 24


def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), np.uint8))


def changes(name: str) -> augment.Change:
    return augment.create(name, SIZE, MEAN, Image.Resampling.BICUBIC)


def changed(name: str, seed: int) -> Any:
    return np.asarray(changes(name)(picture(), np.random.default_rng(seed)))


def check_a_change_depends_on_the_generator_only() -> None:
    for name in NAMES:
        of_seeds = [changed(name, seed) for seed in range(30)]
        assert all((one == changed(name, seed)).all() for seed, one in enumerate(of_seeds)), name
        different = {one.tobytes() for one in of_seeds}
        assert len(different) > 10, f"{name}: only {len(different)} results of 30 seeds"
        assert all(one.shape == (SIZE, SIZE, 3) and one.dtype == np.uint8 for one in of_seeds), name


def check_the_strongest_change_is_possible() -> None:
    for name in ("rand-m10-inc1", "rand-m0"):
        change = changes(name)
        for seed in range(200):
            change(picture(), np.random.default_rng(seed))


def check_the_generators_of_the_training_are_left_as_they_were() -> None:
    def next_numbers() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), torch.rand(1).item()

    def seeded(name: str | None) -> tuple[float, float, float]:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        if name:
            changed(name, 5)
        return next_numbers()

    assert all(seeded(name) == seeded(None) for name in NAMES)
    assert seeded(None) != next_numbers(), "the control: numbers that were used do not return"


def check_an_unknown_change_is_refused() -> None:
    for name in ("augmix", "rand-x", "rand-mx"):
        raises(ImagesError, lambda name=name: changes(name), name, "randaugment", "rand-m9-mstd0.5-inc1")


# -- erasing -------------------------------------------------------------------------------------------------


def erased(share: float, seed: int, *, noise: bool = False) -> Any:
    eraser = augment.Eraser(share, MEAN, DEVIATION, noise=noise)
    return eraser(np.full((100, 80, 3), 250, np.uint8), np.random.default_rng(seed))


def check_a_share_of_pictures_is_erased() -> None:
    shares = [float((erased(0.25, seed) != 250).any(axis=2).mean()) for seed in range(400)]
    assert 60 < sum(share > 0 for share in shares) < 140
    assert all(share == 0 or 0.01 < share < 0.35 for share in shares)
    assert max(shares) > 0.25
    assert (erased(0, 1) == 250).all()


def check_an_erased_rectangle_has_the_mean_or_noise_around_it() -> None:
    plain = next(one for one in (erased(1, seed) for seed in range(9)) if (one != 250).any())
    colours = {tuple(colour) for colour in plain.reshape(-1, 3).tolist()}
    assert colours == {(250, 250, 250), (124, 116, 104)}
    noisy = next(one for one in (erased(1, seed, noise=True) for seed in range(9)) if (one != 250).any())
    values = noisy[(noisy != 250).any(axis=2)].astype(float)
    assert abs(values.mean(axis=0) - 255 * np.array(MEAN)).max() < 15
    assert values.std() > 40


# -- the reader -----------------------------------------------------------------------------------------------


def reader(**how: Any) -> folders.FolderImages:
    root = SCRATCH / "augmented"
    for number in range(4):
        (root / "a").mkdir(parents=True, exist_ok=True)
        picture().resize((40, 30)).save(root / "a" / f"{number}.png")
    listing = folders.list_folder(root, SCRATCH / "augmented cache")
    return folders.FolderImages(listing, SIZE, folders.center_box(1.0), listing.labels, **how)


def check_copies_of_a_picture_are_changed_differently() -> None:
    source = reader(change=changes("randaugment"), seed=1)
    indices = np.array([2, 2, 2, 2])
    copies = source[Draw(0, indices, np.arange(4))].pixels
    assert len({copy.tobytes() for copy in copies}) > 1
    assert (copies == source[Draw(0, indices, np.arange(4))].pixels).all()
    assert (copies[:1] == source[Draw(0, indices[:1])].pixels).all()
    plain = reader()[Draw(0, indices, np.arange(4))].pixels
    assert len({copy.tobytes() for copy in plain}) == 1, "the control: without a change all copies are equal"


def check_changes_come_before_erasing() -> None:
    def white(picture: Image.Image, _: np.random.Generator) -> Image.Image:
        return Image.new("RGB", picture.size, (255, 255, 255))

    source = reader(change=white, erase=augment.Eraser(1, (0.0, 0.0, 0.0), DEVIATION, noise=False))
    pixels = source[Draw(0, np.arange(4))].pixels
    assert set(np.unique(pixels).tolist()) == {0, 255}


def check_a_shifted_box_has_its_share_of_both_sides() -> None:
    rng, choose = np.random.default_rng(0), folders.shifted_box(0.9375)
    boxes = [choose(640, 480, rng) for _ in range(100)]
    for left, top, right, bottom in boxes:
        assert (right - left, bottom - top) == (600, 450)
        assert left >= 0
        assert top >= 0
        assert right <= 640
        assert bottom <= 480
    assert len(set(boxes)) == 100
    assert folders.whole_box(640, 480, rng) == (0, 0, 640, 480)


def check_a_mistyped_setting_is_refused() -> None:
    for name in ("crop", "interpolation"):
        ctx = context("small", dataset="imagenet", num_classes=4, **{name: "wrong"})
        which = sources._shifted if name == "crop" else sources.resampling
        raises(ImagesError, lambda which=which, ctx=ctx: which(ctx), f"{name}='wrong'", "expected")


# -- mixed batches ---------------------------------------------------------------------------------------------


def batch_of(count: int = 3) -> folders.Images:
    pixels = np.zeros((count, 8, 8, 3), np.uint8)
    pixels[:] = np.arange(count, dtype=np.uint8)[:, None, None, None] * 100
    return folders.Images(pixels, np.arange(count))


class Pictures:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, draw: Draw) -> folders.Images:
        return batch_of(len(draw.indices))


def drawn(mixup: float, cutmix: float, batches: int = 400, seed: int = 1) -> list[Mix]:
    source: Any = Mixed(Pictures(), 8, mixup, cutmix, seed)
    return [source[Draw(0, np.array([first, 1]))].mix for first in range(batches)]


def check_both_kinds_of_mixing_are_drawn() -> None:
    both = drawn(0.2, 1.0)
    assert 150 < sum(mix.box is None for mix in both) < 250
    assert all(mix.box is None for mix in drawn(0.2, 0, 50))
    assert all(mix.box is not None for mix in drawn(0, 1.0, 50))
    assert both == drawn(0.2, 1.0)
    assert both != drawn(0.2, 1.0, seed=2)


def check_shares_follow_the_beta_distribution_and_the_pixels() -> None:
    shares = np.array([mix.share for mix in drawn(0.2, 0, 2000)])
    assert abs(shares.mean() - 0.5) < 0.03
    assert abs(shares.var() - 1 / (4 * (2 * 0.2 + 1))) < 0.02  # the variance of Beta(0.2, 0.2)
    for mix in drawn(0, 1.0):
        assert mix.box is not None
        top, bottom, left, right = mix.box
        assert abs(mix.share - (1 - (bottom - top) * (right - left) / 64)) < 1e-12


def prepared(mix: Mix | None) -> steps.Prepared:
    ctx = context(pixel_mean=(0.0,) * 3, pixel_deviation=(1 / 255,) * 3)
    return steps.prepare_batch(ctx, batch_of()._replace(mix=mix))


def check_images_are_mixed_with_the_image_before() -> None:
    mixup = prepared(Mix(0.75, None)).pixels[:, 0, 0, 0]
    assert torch.allclose(mixup, torch.tensor([50.0, 75.0, 175.0]), atol=1e-3)
    cut = prepared(Mix(0.75, (2, 6, 0, 4))).pixels
    assert torch.allclose(cut[1, :, 2:6, :4], torch.tensor(0.0), atol=1e-3)
    assert torch.allclose(cut[2, 0, 2, :], torch.tensor([100.0] * 4 + [200.0] * 4), atol=1e-3)
    assert torch.allclose(cut[:, :, 6:], prepared(None).pixels[:, :, 6:])


def check_the_loss_of_a_mixed_batch_has_both_labels() -> None:
    scores = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    model: Any = lambda _: scores  # noqa: E731
    batch = prepared(Mix(0.75, None))
    loss = steps.calculate_loss(context(label_smoothing=0.1), model, batch)
    targets = 0.75 * functional.one_hot(batch.labels, 5) + 0.25 * functional.one_hot(batch.labels.roll(1), 5)
    expected = functional.cross_entropy(scores, targets.float(), label_smoothing=0.1)
    assert torch.allclose(loss, expected, atol=1e-6)
    plain = steps.calculate_loss(context(label_smoothing=0.1), model, batch._replace(mix=None))
    assert not torch.allclose(plain, expected, atol=1e-3)


def check_training_batches_are_mixed_and_evaluation_batches_are_not() -> None:
    for synthetic in (False, True):
        ctx = context(mixup=0.2, cutmix=1.0, train_batch_size=4, synthetic=synthetic)
        assert next(iter(steps.create_train_data(ctx))).mix is not None  # type: ignore[call-overload]
        assert next(iter(steps.create_eval_data(ctx))).mix is None  # type: ignore[call-overload]
    assert next(iter(steps.create_train_data(context(mixup=0.0, cutmix=0.0)))).mix is None  # type: ignore[call-overload]


def check_evaluation_images_may_be_larger() -> None:
    ctx = context(image_size=16, eval_size=24)
    assert next(iter(steps.create_train_data(ctx))).pixels.shape[1:3] == (16, 16)  # type: ignore[call-overload]
    for synthetic in (False, True):
        ctx = context(image_size=16, eval_size=24, synthetic=synthetic)
        assert next(iter(steps.create_eval_data(ctx))).pixels.shape[1:3] == (24, 24)  # type: ignore[call-overload]
