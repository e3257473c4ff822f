"""ResNet-50's reference scale: ImageNet in folders and in TFRecord files, and a step of the full model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import checking
import data
import numpy as np
import tensorflow as tf
from common.shares import Array

from tests.suites import trials
from tests.suites.tiny_data import imagenet

SMALLER = {
    **imagenet.RESNET, "learning_rate": 0.02, "lr_schedule": "constant", "lr_milestones": None, "lr_warmup": 0,
}  # fmt: skip
CUT, write = imagenet.CUT, imagenet.write
PARAMETERS = 25_557_032
"""num_params of torchvision's ``ResNet50_Weights.IMAGENET1K_V1``."""
STEP = {"train_batch_size": 2, "lr_warmup": 0}
FROZEN = "layer4.2.bn3/gamma"
RECORDS = {"train_data": "records/train", "eval_data": "records/val"}
ONE = "records/train/train-00001-of-00003"


def write_records(path: Path) -> None:
    """Write the pictures of the folders to TFRecord files."""
    for part, prefix, files in (("train", "train", 3), ("val", "validation", 2)):
        (path / "records" / part).mkdir(parents=True)
        pictures = sorted(file for file in (path / part).rglob("*.JPEG") if file.is_file())
        classes = sorted({file.parent.name for file in pictures})
        for number in range(files):
            name = path / "records" / part / f"{prefix}-{number:05}-of-{files:05}"
            with tf.io.TFRecordWriter(str(name)) as writer:
                for file in pictures[number::files]:
                    writer.write(record(file.read_bytes(), classes.index(file.parent.name) + 1))


def record(encoded: bytes, label: int) -> bytes:
    """Return one picture as in ImageNet's TFRecord files."""
    features = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded])),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    serialized: bytes = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    return serialized


def with_records(path: Path) -> None:
    imagenet.write(path)
    write_records(path)


IN_RECORDS = trials.TinyData(checking.SUITE, checking.SCRATCH / "in_records", {**SMALLER, **RECORDS}, with_records)


def check_records_are_read_and_learnt() -> None:
    IN_RECORDS.check_learnt(IN_RECORDS.folder("learnt"))


def batches(path: Path, train: bool, **settings: object) -> Iterator[tuple[Array, Array]]:
    """Yield the pixels and labels of all ranks' batches of one epoch."""
    for rank in range(2):
        ctx = checking.context("reference", rank, 2, **{**SMALLER, **settings})
        object.__setattr__(ctx, "data_dir", path)
        for batch in (data.create_train_data if train else data.create_eval_data)(ctx):
            yield batch.pixels, batch.labels


def check_records_have_the_pictures_and_labels_of_the_folders() -> None:
    path = IN_RECORDS.folder("same")
    for train in (True, False):
        found = [
            sorted((int(label), float(pixels.mean())) for batch in read for pixels, label in zip(*batch, strict=True))
            for read in (batches(path, train, num_workers=2), batches(path, train, num_workers=0, **RECORDS))
        ]
        assert [label for label, _ in found[0]] == [label for label, _ in found[1]]
        if not train:
            np.testing.assert_allclose(found[0], found[1])
    shuffled = [label for _, labels in batches(path, True, shuffle_labels=True, **RECORDS) for label in labels.tolist()]
    true = [label for _, labels in batches(path, True, **RECORDS) for label in labels.tolist()]
    assert shuffled != true


def check_damaged_records_are_named() -> None:
    def change(place: slice, content: bytes) -> None:
        def damage(path: Path) -> None:
            content_of = bytearray((path / ONE).read_bytes())
            content_of[place] = content
            (path / ONE).write_bytes(bytes(content_of))

        IN_RECORDS.damaged(damage, ONE, "cannot be read", "copy the file again")

    change(slice(12, 400), b"\0" * 388)
    IN_RECORDS.damaged(
        lambda path: (path / ONE).write_bytes((path / ONE).read_bytes()[:-9]),
        ONE,
        "is incomplete",
        "copy the file again",
    )
    IN_RECORDS.damaged(lambda path: tf.io.TFRecordWriter(str(path / ONE)).write(record(b"", 9)), ONE, "cannot be read")


def check_a_label_beyond_the_classes_is_named() -> None:
    path = IN_RECORDS.folder("labels")
    trials.fails(lambda: IN_RECORDS.train(path, num_classes=2), "has label 3; expected 1 to 2")
