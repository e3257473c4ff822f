"""Checks of the vision suites' images, run by test_resnet50.py with the PyTorch environment's Python."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from common import digits, images
from PIL import Image
from resnet50_checks import report

SCRATCH = Path(sys.argv[1])
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


def listing(root: Path) -> images.Listing:
    return images.list_folder(root, cache())


def reader(root: Path, **how: object) -> images.FolderImages:
    listed = listing(root)
    settings = {"box": images.center_box(1.0), "labels": listed.labels, **how}
    return images.FolderImages(listed, 16, **settings)  # type: ignore[arg-type]


def draw(*indices: int, epoch: int = 0) -> images.Draw:
    return images.Draw(epoch, np.array(indices))


def raises(act: Callable[[], object], *words: str) -> None:
    message = "no error"
    try:
        act()
    except images.ImagesError as error:
        message = str(error)
    missing = [word for word in words if word not in message]
    assert not missing, f"{message!r} does not contain {missing}"


def order(share: images.Share) -> list[list[int]]:
    return [batch.indices.tolist() for batch in share]


# -- listing -------------------------------------------------------------------------------------------------


def check_a_folder_is_listed_by_class() -> None:
    listed = listing(folder({"n02": 3, "n01": 2}))
    assert listed.classes == ("n01", "n02")
    assert listed.labels.tolist() == [0, 0, 1, 1, 1]
    assert listed.path(4).name == "2.JPEG"
    assert listed.path(4).parent.name == "n02"


def check_a_listing_is_cached_until_a_folder_changes() -> None:
    root, kept = folder({"a": 2}), cache()
    images.list_folder(root, kept)
    scanned = images._scan
    images._scan = lambda folders: (_ for _ in ()).throw(AssertionError("the folders were scanned again"))  # type: ignore[assignment]
    try:
        assert len(images.list_folder(root, kept)) == 2
    finally:
        images._scan = scanned
    Image.new("RGB", (8, 8)).save(root / "a" / "new.png")
    os.utime(root / "a", (1, 1))
    assert len(images.list_folder(root, kept)) == 3


def check_a_truncated_cache_is_scanned_again() -> None:
    root, kept = folder({"a": 2}), cache()
    images.list_folder(root, kept)
    for file in kept.iterdir():
        file.write_bytes(file.read_bytes()[:50])
    assert len(images.list_folder(root, kept)) == 2


def check_a_listing_needs_no_cache() -> None:
    file = SCRATCH / "file"
    file.write_text("")
    assert len(images.list_folder(folder({"a": 2}), file / "below")) == 2


def check_a_folder_without_images_is_an_error() -> None:
    raises(lambda: listing(SCRATCH / "nowhere"), "nowhere", "folder not found")
    (SCRATCH / "empty").mkdir()
    raises(lambda: listing(SCRATCH / "empty"), "no class folders")
    raises(lambda: listing(folder({"a": 1, "b": 0})), "no images in b", ".jpeg")


def check_validation_classes_are_numbered_as_in_training() -> None:
    trained = ("a", "b", "c")
    assert listing(folder({"a": 1, "c": 2})).relabelled(trained).labels.tolist() == [0, 2, 2]
    raises(lambda: listing(folder({"a": 1, "x": 1})).relabelled(trained), "x", "3 training classes")


# -- reading -------------------------------------------------------------------------------------------------


def check_pixels_are_bytes_and_channels_last() -> None:
    batch = reader(folder({"a": 1, "b": 1, "c": 1}))[draw(2, 0)]
    assert batch.pixels.shape == (2, 3, 16, 16)
    assert batch.pixels.dtype == torch.uint8
    assert batch.pixels.is_contiguous(memory_format=torch.channels_last)
    assert batch.labels.tolist() == [2, 0]
    assert abs(int(batch.pixels[0, 0].float().mean()) - 120) < 4, "the label belongs to another picture"


def check_the_middle_is_cropped_like_resize_and_crop() -> None:
    from torchvision.transforms import functional

    root = folder({"a": 1}, 80, 60)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)).resize((80, 60))
    picture.save(root / "a" / "0.JPEG", quality=100)
    ours = reader(root, box=images.center_box(16 / 20))[draw(0)].pixels[0].float()
    with Image.open(root / "a" / "0.JPEG") as file:
        theirs = functional.pil_to_tensor(functional.center_crop(functional.resize(file, 20), 16)).float()
    assert (ours - theirs).abs().mean() < 3
    assert (ours - theirs.flip(2)).abs().mean() > 10, "the control: the measure must detect a difference"


def check_random_boxes_lie_within_and_differ() -> None:
    rng = np.random.default_rng(0)
    sizes = [(500, 375), (20, 400), (3, 2)] * 100
    boxes = [images.random_box(width, height, rng) for width, height in sizes]
    for (left, top, right, bottom), (width, height) in zip(boxes, sizes, strict=True):
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
    areas = [(box[2] - box[0]) * (box[3] - box[1]) / (500 * 375) for box in boxes[::3]]
    assert 0.07 < min(areas) < 0.2
    assert 0.8 < max(areas) <= 1


def check_augmentation_depends_on_seed_epoch_and_sample_only() -> None:
    root = folder({"a": 40})
    source = reader(root, box=images.random_box, mirror=True, seed=1)

    def mirrored(of: images.FolderImages, epoch: int) -> list[bool]:
        flags = of[draw(*range(40), epoch=epoch)].mirrored
        assert flags is not None
        return list(flags.tolist())

    first = mirrored(source, 0)
    assert first == mirrored(source, 0)
    assert first != mirrored(source, 1)
    assert first != mirrored(reader(root, box=images.random_box, mirror=True, seed=2), 0)
    assert 5 < sum(first) < 35
    assert reader(root)[draw(0)].mirrored is None


def check_a_broken_file_is_named() -> None:
    root = folder({"a": 2})
    (root / "a" / "1.JPEG").write_bytes(b"no picture")
    source = reader(root)
    assert len(source[draw(0)].labels) == 1
    raises(lambda: source[draw(0, 1)], "1.JPEG", "cannot be read")


def check_workers_read_what_one_process_reads() -> None:
    source = reader(folder({"a": 5, "b": 8}), box=images.random_box, mirror=True)

    def epochs(workers: int) -> Iterator[torch.Tensor]:
        loader = images.Loader(source, images.TrainShare(13, 3, 0, 1, seed=1), workers)
        for epoch in range(2):
            loader.set_epoch(epoch)
            yield from (batch.pixels for batch in loader)

    here, there = list(epochs(0)), list(epochs(2))
    assert len(here) == len(there) == 8
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))
    assert not torch.equal(here[0], here[4]), "the second epoch is the same as the first"


def check_prepared_images_are_normalised_and_mirrored() -> None:
    pixels = torch.arange(12, dtype=torch.uint8).reshape(1, 3, 2, 2).repeat(2, 1, 1, 1)
    raw = images.Images(pixels, torch.tensor([0, 1]), torch.tensor([False, True]))
    mean, deviation = (torch.tensor(of).view(3, 1, 1) for of in (images.MEAN, images.STD))
    for channels_last in (False, True):
        ready = images.prepare(raw, torch.device("cpu"), channels_last=channels_last).pixels
        expected = (pixels[0] / 255 - mean) / deviation
        assert torch.allclose(ready[0], expected, atol=1e-6)
        assert torch.allclose(ready[1], expected.flip(2), atol=1e-6)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        assert ready.is_contiguous(memory_format=layout)


def check_synthetic_images_are_made_once_in_the_given_shape() -> None:
    source = images.SyntheticImages(1000, images.BatchShape(4, 16, 7), seed=3, pin=False)
    again = images.SyntheticImages(1000, images.BatchShape(4, 16, 7), seed=3, pin=False)
    batches = [source[draw(0, 1, 2, 3)] for _ in range(5)]
    assert len(source) == 1000
    assert batches[0].pixels.data_ptr() == batches[4].pixels.data_ptr()
    assert not torch.equal(batches[0].pixels, batches[1].pixels)
    assert torch.equal(batches[0].pixels, again[draw(0, 1, 2, 3)].pixels)
    assert batches[0].pixels.is_contiguous(memory_format=torch.channels_last)
    assert int(torch.cat([batch.labels for batch in batches]).max()) < 7
    assert len(source[draw(0, 1)].labels) == 2


# -- sharing -------------------------------------------------------------------------------------------------


def check_training_shares_are_equal_and_disjoint_and_not_padded() -> None:
    shares = [images.TrainShare(103, 10, rank, 3, seed=5) for rank in range(3)]
    parts = [[index for batch in order(share) for index in batch] for share in shares]
    assert [len(part) for part in parts] == [30, 30, 30]
    together = [index for part in parts for index in part]
    assert len(set(together)) == 90, "a sample was drawn twice"
    assert max(together) < 103


def check_every_epoch_has_its_own_order_by_the_seed() -> None:
    def of(seed: int, epoch: int) -> list[list[int]]:
        share = images.TrainShare(100, 10, 0, 1, seed)
        share.set_epoch(epoch)
        return order(share)

    assert of(1, 0) == of(1, 0)
    assert of(1, 0) != of(1, 1)
    assert of(1, 0) != of(2, 0)


def check_the_global_order_does_not_depend_on_the_ranks() -> None:
    one = order(images.TrainShare(100, 20, 0, 1, seed=4))
    two = [order(images.TrainShare(100, 10, rank, 2, seed=4)) for rank in range(2)]
    assert one == [left + right for left, right in zip(*two, strict=True)]


def check_a_resumed_epoch_continues_after_the_skipped_batches() -> None:
    share = images.TrainShare(100, 10, 0, 1, seed=4)
    whole = order(share)
    share.skip(7)
    assert order(share) == whole[7:]
    assert order(share) == whole, "the next epoch must not skip batches"


def check_skipped_images_are_not_read() -> None:
    root = folder({"a": 6})
    loader = images.Loader(reader(root), images.TrainShare(6, 1, 0, 1, seed=1))
    for index in order(images.TrainShare(6, 1, 0, 1, seed=1))[:4]:
        (root / "a" / f"{index[0]}.JPEG").unlink()
    loader.skip(4)
    assert len(list(loader)) == 2
    raises(lambda: list(loader), "cannot be read")


def check_too_few_samples_are_an_error() -> None:
    raises(lambda: images.TrainShare(15, 8, 0, 2, seed=1), "15 samples", "train_batch_size")
    assert len(images.TrainShare(16, 8, 0, 2, seed=1)) == 1


def check_evaluation_shares_are_exact() -> None:
    for samples, batch, ranks in itertools.product((1, 7, 360, 361), (1, 4, 180), (1, 2, 3, 8)):
        shares = [images.EvalShare(samples, batch, rank, ranks) for rank in range(ranks)]
        assert sorted(i for share in shares for part in order(share) for i in part) == list(range(samples))
        assert all(len(order(share)) == len(share) for share in shares)


# -- digits --------------------------------------------------------------------------------------------------


def check_no_evaluation_digit_is_trained_on() -> None:
    train, judged = digits.split()
    assert (len(train), len(judged)) == (1437, 360)
    assert len(set(train.tolist()) | set(judged.tolist())) == 1797
    kept = {image.numpy().tobytes() for image in digits.load(8, train=True).pixels}
    same = [image.numpy().tobytes() in kept for image in digits.load(8, train=False).pixels]
    assert not any(same), "an image is in both parts"


def check_digits_are_images_of_the_given_size() -> None:
    part = digits.load(32, train=False)
    assert part.pixels.shape == (360, 3, 32, 32)
    assert part.pixels.dtype == torch.uint8
    assert int(part.pixels.max()) == 255
    assert torch.equal(part.pixels[:, 0], part.pixels[:, 2])
    assert set(part.labels.tolist()) == set(range(10))


def check_shuffled_labels_belong_to_other_samples() -> None:
    labels = digits.load(8, train=True).labels.numpy()
    shuffled_labels = images.shuffled(labels, seed=1)
    assert sorted(shuffled_labels.tolist()) == sorted(labels.tolist())
    assert 0.05 < float((shuffled_labels == labels).mean()) < 0.15
    assert (shuffled_labels == images.shuffled(labels, seed=1)).all()
    assert (shuffled_labels != images.shuffled(labels, seed=2)).any()


if __name__ == "__main__":
    report(globals())
