"""The steps that detection suites share; a suite adds its model.

A model takes a ``Prepared`` batch. In training it returns losses by name; in evaluation, for each picture, ``boxes`` in
pixels of the resized picture, ``labels``, ``scores``, and ``masks`` (n, 1, M, M) over the boxes if it has them.

The steps read these config keys in addition to those of every training: ``dataset`` (coco or scenes), ``train_data``,
``eval_data``, ``shapes``, ``min_size``, ``max_size``, ``max_boxes``, ``masks``, ``mask_size`` and ``num_classes``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.models.detection.roi_heads import paste_masks_in_image

from common.detection import coco, metric, scenes
from common.detection.coco import CocoError, CocoPictures, Form, Index, Pictures
from common.detection.metric import Prediction
from common.shares import GroupedEvalShare, GroupedTrainShare, Repeated, Share, Source, TrainShare
from common.steps import Loader, normalised
from flagperf_driver import seeds
from flagperf_driver.pytorch import Context, Steps
from flagperf_driver.pytorch import device as devices

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
ANNOTATIONS = "annotations"
COCO_TRAIN = 117_266
"""The number of training pictures with boxes, also of an epoch of synthetic pictures."""
SYNTHETIC_BATCHES = 4
FIXED = ("backbone", "rpn.head", "head")
VARYING = ("roi_heads.box_head", "roi_heads.box_predictor", "roi_heads.mask_head", "roi_heads.mask_predictor")
"""The compiled parts of models, by whether their inputs have fixed shapes; the other parts choose boxes by value."""


class Prepared(NamedTuple):
    """A batch on the device. Numbers that the host needs are on the host, so that it does not wait for the device."""

    pixels: Tensor
    """(N, 3, H, W), normalised."""
    sizes: list[tuple[int, int]]
    originals: list[tuple[int, int]]
    ids: list[int]
    counts: list[int]
    boxes: Tensor
    labels: Tensor
    masks: Tensor | None = None

    def targets(self) -> list[dict[str, Tensor]]:
        """Return each picture's boxes, labels and masks; a mask covers its box, not the picture."""
        named = {"boxes": self.boxes, "labels": self.labels}
        if self.masks is not None:
            named["masks"] = self.masks
        return [{name: of[place, :count] for name, of in named.items()} for place, count in enumerate(self.counts)]


def detection(create_model: Callable[[Context], nn.Module]) -> Steps:
    """Return all steps of a suite that finds objects."""
    return Steps(
        create_model=create_model,
        create_train_data=create_train_data,
        create_eval_data=create_eval_data,
        prepare_batch=prepare_batch,
        calculate_loss=calculate_loss,
        evaluate_batch=evaluate_batch,
        summarize=summarize,
        count_samples=count_samples,
        compile_model=compile_model,
    )


def create_train_data(ctx: Context) -> Iterable[Pictures]:
    """Return this rank's share of every epoch."""
    batch_size = ctx.config.train_batch_size
    if ctx.synthetic:
        share: Share = TrainShare(_epoch(ctx), batch_size, ctx.data_rank, ctx.data_ranks, ctx.seed)
        return Loader(_synthetic(ctx, batch_size), share)
    source = _source(ctx, train=True)
    share = GroupedTrainShare(source.groups, batch_size, ctx.data_rank, ctx.data_ranks, ctx.seed)
    return _loader(ctx, source, share)


def create_eval_data(ctx: Context) -> Iterable[Pictures]:
    """Return this rank's share of the validation set."""
    batch_size = ctx.config.eval_batch_size
    if ctx.synthetic:
        groups = np.zeros(batch_size * ctx.data_ranks, np.int64)
        return Loader(_synthetic(ctx, batch_size), GroupedEvalShare(groups, batch_size, ctx.data_rank, ctx.data_ranks))
    source = _source(ctx, train=False)
    return _loader(ctx, source, GroupedEvalShare(source.groups, batch_size, ctx.data_rank, ctx.data_ranks))


def prepare_batch(ctx: Context, batch: Pictures) -> Prepared:
    """Copy the batch to the device as bytes, and normalise it there."""
    pixels, boxes, labels, masks = devices.to_device((batch.pixels, batch.boxes, batch.labels, batch.masks), ctx.device)
    pixels = pixels.permute(0, 3, 1, 2)  # channels last in memory, as decoded
    return Prepared(
        normalised(ctx, pixels, MEAN, DEVIATION),
        [(height, width) for height, width in batch.sizes.tolist()],
        [(height, width) for height, width in batch.originals.tolist()],
        batch.ids.tolist(),
        batch.counts.tolist(),
        boxes,
        labels,
        masks,
    )


def calculate_loss(ctx: Context, model: nn.Module, batch: Prepared) -> Tensor:  # noqa: ARG001 - a step's signature
    """Return the sum of the model's losses."""
    return torch.stack([loss.float() for loss in model(batch).values()]).sum()


def evaluate_batch(ctx: Context, model: nn.Module, batch: Prepared) -> list[Prediction]:
    """Return what the model found in each picture, in pixels of the stored picture."""
    predictions = []
    for found, size, original, id_ in zip(model(batch), batch.sizes, batch.originals, batch.ids, strict=True):
        (height, width), (resized_height, resized_width) = original, size
        across, down = width / resized_width, height / resized_height
        boxes = found["boxes"].float() * found["boxes"].new_tensor([across, down, across, down])
        masks = _encoded(found["masks"].float(), boxes, original) if ctx.config.masks else []
        boxes, scores, labels = (tensor.cpu().numpy() for tensor in (boxes, found["scores"].float(), found["labels"]))
        predictions.append(Prediction(id_, boxes, scores, labels, masks))
    return predictions


def _encoded(masks: Tensor, boxes: Tensor, shape: tuple[int, int]) -> list[Any]:
    whole = paste_masks_in_image(masks, boxes, shape)[:, 0] > 0.5
    return [metric.encoded(mask) for mask in whole.cpu().numpy()]


def summarize(ctx: Context, predictions: list[Prediction]) -> dict[str, float]:
    """Return the mean average precisions over the whole set; 0 for synthetic pictures, which have no objects."""
    if ctx.synthetic:
        names = ["map", "map50", *(["map_segm", "map50_segm"] if ctx.config.masks else [])]
        return dict.fromkeys(names, 0.0)
    return metric.evaluate(_annotated(ctx, train=False)[0], predictions, with_masks=ctx.config.masks)


def count_samples(ctx: Context, batch: Pictures | Prepared) -> int:  # noqa: ARG001 - a step's signature
    """Return the number of pictures."""
    return len(batch.labels)


def compile_model(ctx: Context, model: nn.Module) -> nn.Module:
    """Compile the parts that work on whole tensors; each shape of a batch has its own graph."""
    graphs = 8 * len(ctx.config.shapes)  # in training and evaluation, and for the last batch of each shape
    torch._dynamo.config.recompile_limit = max(graphs, torch._dynamo.config.recompile_limit)
    parts = dict(model.named_modules())
    for name in FIXED + VARYING:
        if name in parts:
            parts[name].compile(mode=ctx.config.compile_mode, dynamic=name in VARYING)
    return model


# -- sources of pictures -------------------------------------------------------------------------------------


def _source(ctx: Context, *, train: bool) -> CocoPictures:
    index, read = _annotated(ctx, train=train)
    if len(index.categories) >= ctx.config.num_classes:
        raise CocoError(
            f"the annotations have {len(index.categories)} categories; num_classes = {ctx.config.num_classes} must be "
            "greater, because class 0 is the background"
        )
    return CocoPictures(
        index, read, _form(ctx), train=train, seed=ctx.seed, shuffle=train and ctx.config.shuffle_labels
    )


def _annotated(ctx: Context, *, train: bool) -> tuple[Index, Callable[[int], Any]]:
    """Return the annotations, and the reader of the pictures."""
    if ctx.config.dataset == "scenes":
        part = scenes.load(train=train)
        return part.index, part.read
    if ctx.data_dir is None:
        raise CocoError(
            "data_dir is not set; pass --data-dir (the folder of train2017/, val2017/ and annotations/) or --synthetic"
        )
    name = ctx.config.train_data if train else ctx.config.eval_data
    index = _index(ctx.data_dir / ANNOTATIONS / f"instances_{name}.json")
    return index, coco.reader(index, ctx.data_dir / name)


_index = cache(coco.read_index)  # the data and the metric share one index per process


def _form(ctx: Context) -> Form:
    config = ctx.config
    fill = tuple(round(255 * value) for value in MEAN)
    mask_size = config.mask_size if config.masks else None
    shapes = [tuple(shape) for shape in config.shapes]
    return Form(shapes, config.min_size, config.max_size, config.max_boxes, fill, mask_size)


def _epoch(ctx: Context) -> int:
    return scenes.TRAIN if ctx.config.dataset == "scenes" else COCO_TRAIN


def _synthetic(ctx: Context, batch_size: int) -> Source:
    """Return random pictures of the first shape that cost no more than the copy to the device."""
    form = _form(ctx)
    rng = np.random.default_rng(seeds.derive(ctx.seed, seeds.RANK, ctx.data_rank))
    batches = []
    for _ in range(SYNTHETIC_BATCHES):
        drawn = coco.random_pictures(batch_size, form.shapes[0], form, ctx.config.num_classes, rng)
        pixels = torch.from_numpy(drawn.pixels)
        batches.append(drawn._replace(pixels=pixels.pin_memory() if devices.pins(ctx.device) else pixels))
    return Repeated(batches, _epoch(ctx))


def _loader(ctx: Context, source: CocoPictures, share: Share) -> Loader:
    workers = 0 if ctx.config.dataset == "scenes" else ctx.config.num_workers
    return Loader(source, share, workers, pin=devices.pins(ctx.device))
