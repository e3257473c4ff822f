"""Checks of the readers of images and of their preparation on the device."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from checking import SCRATCH, context, raises
from common.images import digits, folders, steps
from common.images.folders import ImagesError
from common.shares import Draw, Repeated, TrainShare
from common.steps import Loader
from PIL import Image

COUNTER = itertools.count()


def folder(classes: dict[str, int], width: int = 40, height: int = 30) -> Path:
    """Write pictures of each class in the given numbers; each class has its own colour."""
    root = SCRATCH / f"images{next(COUNTER)}"
    for shade, (name, count) in enumerate(classes.items()):
        (root / name).mkdir(parents=True)
        for index in range(count):
            Image.new("RGB", (width, height), (60 * shade, 0, 0)).save(root / name / f"{index}.JPEG")
    return root


def cache() -> Path:
    return SCRATCH / f"cache{next(COUNTER)}"


def listing(root: Path) -> folders.Listing:
    return folders.list_folder(root, cache())


def reader(root: Path, **how: object) -> folders.FolderImages:
    listed = listing(root)
    settings = {"box": folders.center_box(1.0), "labels": listed.labels, **how}
    return folders.FolderImages(listed, 16, **settings)  # type: ignore[arg-type]


def order(share: TrainShare) -> list[list[int]]:
    return [batch.indices.tolist() for batch in share]


def draw(*indices: int, epoch: int = 0) -> Draw:
    return Draw(epoch, np.array(indices))


# -- listing -------------------------------------------------------------------------------------------------


def check_a_folder_is_listed_by_class() -> None:
    listed = listing(folder({"n02": 3, "n01": 2}))
    assert listed.classes == ("n01", "n02")
    assert listed.labels.tolist() == [0, 0, 1, 1, 1]
    assert listed.path(4).name == "2.JPEG"
    assert listed.path(4).parent.name == "n02"


def check_a_listing_is_cached_until_a_folder_changes() -> None:
    root, kept = folder({"a": 2}), cache()
    folders.list_folder(root, kept)
    scanned = folders._scan
    folders._scan = lambda _: (_ for _ in ()).throw(AssertionError("the folders were scanned again"))
    try:
        assert len(folders.list_folder(root, kept)) == 2
    finally:
        folders._scan = scanned
    Image.new("RGB", (8, 8)).save(root / "a" / "new.png")
    os.utime(root / "a", (1, 1))
    assert len(folders.list_folder(root, kept)) == 3


def check_a_truncated_cache_is_scanned_again() -> None:
    root, kept = folder({"a": 2}), cache()
    folders.list_folder(root, kept)
    for file in kept.iterdir():
        file.write_bytes(file.read_bytes()[:50])
    assert len(folders.list_folder(root, kept)) == 2


def check_a_listing_needs_no_cache() -> None:
    file = SCRATCH / "file"
    file.write_text("")
    assert len(folders.list_folder(folder({"a": 2}), file / "below")) == 2


def check_a_folder_without_images_is_an_error() -> None:
    raises(ImagesError, lambda: listing(SCRATCH / "nowhere"), "nowhere", "folder not found")
    (SCRATCH / "empty").mkdir()
    raises(ImagesError, lambda: listing(SCRATCH / "empty"), "no class folders")
    raises(ImagesError, lambda: listing(folder({"a": 1, "b": 0})), "no images in b", ".jpeg")


def check_validation_classes_are_numbered_as_in_training() -> None:
    trained = ("a", "b", "c")
    assert listing(folder({"a": 1, "c": 2})).relabelled(trained).labels.tolist() == [0, 2, 2]
    raises(ImagesError, lambda: listing(folder({"a": 1, "x": 1})).relabelled(trained), "x", "3 training classes")


# -- reading -------------------------------------------------------------------------------------------------


def check_pixels_are_bytes_and_channels_last() -> None:
    batch = reader(folder({"a": 1, "b": 1, "c": 1}))[draw(2, 0)]
    assert batch.pixels.shape == (2, 16, 16, 3)
    assert batch.pixels.dtype == np.uint8
    assert batch.labels.tolist() == [2, 0]
    assert abs(int(batch.pixels[0, :, :, 0].mean()) - 120) < 4, "the label belongs to another picture"


def check_the_middle_is_cropped_like_resize_and_crop() -> None:
    from torchvision.transforms import functional

    root = folder({"a": 1}, 80, 60)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)).resize((80, 60))
    picture.save(root / "a" / "0.JPEG", quality=100)
    ours = reader(root, box=folders.center_box(16 / 20))[draw(0)].pixels[0].astype(float)
    with Image.open(root / "a" / "0.JPEG") as file:
        theirs = np.asarray(functional.center_crop(functional.resize(file, 20), 16)).astype(float)
    assert abs(ours - theirs).mean() < 3
    assert abs(ours - theirs[:, ::-1]).mean() > 10, "the control: the measure must detect a difference"


def check_random_boxes_lie_within_and_differ() -> None:
    rng = np.random.default_rng(0)
    sizes = [(500, 375), (20, 400), (3, 2)] * 100
    boxes = [folders.random_box(width, height, rng) for width, height in sizes]
    for (left, top, right, bottom), (width, height) in zip(boxes, sizes, strict=True):
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
    areas = [(box[2] - box[0]) * (box[3] - box[1]) / (500 * 375) for box in boxes[::3]]
    assert 0.07 < min(areas) < 0.2
    assert 0.8 < max(areas) <= 1


def check_augmentation_depends_on_seed_epoch_and_sample_only() -> None:
    root = folder({"a": 40})
    source = reader(root, box=folders.random_box, mirror=True, seed=1)

    def mirrored(of: folders.FolderImages, epoch: int) -> list[bool]:
        flags = of[draw(*range(40), epoch=epoch)].mirrored
        assert flags is not None
        return list(flags.tolist())

    first = mirrored(source, 0)
    assert first == mirrored(source, 0)
    assert first != mirrored(source, 1)
    assert first != mirrored(reader(root, box=folders.random_box, mirror=True, seed=2), 0)
    assert 5 < sum(first) < 35
    assert reader(root)[draw(0)].mirrored is None


def check_a_broken_file_is_named() -> None:
    root = folder({"a": 2})
    (root / "a" / "1.JPEG").write_bytes(b"no picture")
    source = reader(root)
    assert len(source[draw(0)].labels) == 1
    raises(ImagesError, lambda: source[draw(0, 1)], "1.JPEG", "cannot be read")


def check_workers_read_what_one_process_reads() -> None:
    source = reader(folder({"a": 5, "b": 8}), box=folders.random_box, mirror=True)

    def epochs(workers: int) -> Iterator[folders.Array]:
        loader = Loader(source, TrainShare(13, 3, 0, 1, seed=1), workers)
        for epoch in range(2):
            loader.set_epoch(epoch)
            yield from (np.asarray(batch.pixels) for batch in loader)

    here, there = list(epochs(0)), list(epochs(2))
    assert len(here) == len(there) == 8
    assert all((a == b).all() for a, b in zip(here, there, strict=True))
    assert (here[0] != here[4]).any(), "the second epoch is the same as the first"


def check_repeated_batches_are_pinned_once_if_the_device_wants_it() -> None:
    source = Repeated([folders.Images(np.zeros((3, 2, 2, 3), np.uint8), np.arange(3), None)] * 2, 12)
    pinned: list[torch.Tensor] = []
    with mock.patch.object(torch.Tensor, "pin_memory", lambda tensor: (pinned.append(tensor), tensor)[1]):
        assert len(list(Loader(source, TrainShare(12, 3, 0, 1, seed=1)))) == 4
        assert not pinned
        loader = Loader(source, TrainShare(12, 3, 0, 1, seed=1), pin=True)
        assert [type(batch.pixels) for batch in loader] == [torch.Tensor] * 4
    assert len(pinned) == 2 * 2, "pixels and labels of two batches"


def check_skipped_images_are_not_read() -> None:
    root = folder({"a": 6})
    loader = Loader(reader(root), TrainShare(6, 1, 0, 1, seed=1))
    for index in order(TrainShare(6, 1, 0, 1, seed=1))[:4]:
        (root / "a" / f"{index[0]}.JPEG").unlink()
    loader.skip(4)
    assert len(list(loader)) == 2
    raises(ImagesError, lambda: list(loader), "cannot be read")


def check_prepared_images_are_normalised_and_mirrored() -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3).repeat(2, 0)
    raw = folders.Images(pixels, np.array([0, 1]), np.array([False, True]))
    moments = {"pixel_mean": (0.1, 0.2, 0.3), "pixel_deviation": (0.4, 0.5, 0.6)}
    mean, deviation = (torch.tensor(of).view(3, 1, 1) for of in moments.values())
    for channels_last in (False, True):
        ready = steps.prepare_batch(context(channels_last=channels_last, **moments), raw).pixels
        expected = (torch.from_numpy(pixels[0]).permute(2, 0, 1) / 255 - mean) / deviation
        assert torch.allclose(ready[0], expected, atol=1e-6)
        assert torch.allclose(ready[1], expected.flip(2), atol=1e-6)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        assert ready.is_contiguous(memory_format=layout)


def check_synthetic_images_are_made_once_in_the_given_shape() -> None:
    ctx = context(synthetic=True, train_batch_size=4, image_size=16, num_classes=7)
    source, again, other = (steps.create_train_data(replace(ctx, seed=seed)) for seed in (3, 3, 4))
    batches, same = list(itertools.islice(source, 8)), next(iter(again))
    assert batches[0].pixels.shape == (4, 16, 16, 3)
    assert len({batch.pixels.data_ptr() for batch in batches}) == 4
    assert not torch.equal(batches[0].pixels, batches[1].pixels)
    assert torch.equal(batches[0].pixels, same.pixels)
    assert not torch.equal(batches[0].pixels, next(iter(other)).pixels)
    assert int(torch.cat([batch.labels for batch in batches]).max()) < 7
    assert steps.prepare_batch(ctx, same).pixels.shape == (4, 3, 16, 16)


# -- digits --------------------------------------------------------------------------------------------------


def check_no_evaluation_digit_is_trained_on() -> None:
    train, judged = digits.split()
    assert (len(train), len(judged)) == (1437, 360)
    assert len(set(train.tolist()) | set(judged.tolist())) == 1797
    kept = {image.tobytes() for image in digits.load(8, train=True).pixels}
    same = [image.tobytes() in kept for image in digits.load(8, train=False).pixels]
    assert not any(same), "an image is in both parts"


def check_digits_are_images_of_the_given_size() -> None:
    part = digits.load(32, train=False)
    assert part.pixels.shape == (360, 32, 32, 3)
    assert part.pixels.dtype == np.uint8
    assert int(part.pixels.max()) == 255
    assert (part.pixels[..., 0] == part.pixels[..., 2]).all()
    assert set(part.labels.tolist()) == set(range(10))


def check_shuffled_labels_belong_to_other_samples() -> None:
    labels = digits.load(8, train=True).labels
    shuffled_labels = folders.shuffled(labels, seed=1)
    assert sorted(shuffled_labels.tolist()) == sorted(labels.tolist())
    assert 0.05 < float((shuffled_labels == labels).mean()) < 0.15
    assert (shuffled_labels == folders.shuffled(labels, seed=1)).all()
    assert (shuffled_labels != folders.shuffled(labels, seed=2)).any()
