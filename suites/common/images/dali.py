"""Pictures that NVIDIA DALI decodes, cuts, resizes and mirrors: on the rank's GPU, without one on the host.

DALI gets the files, boxes and mirroring of the other readers, in their order. It is imported late, because suites do
not require a vendor's package.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
from PIL import Image

from common.images.encoded import Encoded
from common.images.folders import Images, ImagesError
from common.shares import Array

AHEAD = 2
"""The number of batches that DALI decodes in advance."""

_PIPELINES: WeakSet[Any] = WeakSet()
_INHERITED: list[Any] = []
"""The pipelines of the parent: a forked process that freed one would wait for threads that it does not have."""
os.register_at_fork(after_in_child=lambda: _INHERITED.extend(_PIPELINES))


class Form(NamedTuple):
    """What a pipeline of DALI is built for."""

    batch_size: int
    """The number of pictures in the largest batch."""
    size: int
    """Height and width of the resized pictures."""
    resampling: Image.Resampling
    threads: int
    gpu: int | None
    """The number of the rank's GPU; None: the host decodes."""


class Decoder:
    """Decodes batches of encoded pictures in advance."""

    def __init__(self, form: Form) -> None:
        self._form, self._dali = form, _package()
        self._unread: Iterator[Encoded] = iter(())
        self._running: deque[Encoded] = deque()
        """The batches that DALI has, in order."""
        self._between_passes = True

    def decode(self, batches: Iterator[Encoded]) -> Iterator[Images]:
        """Yield the decoded batches; their pixels are DALI's tensors, which support DLPack."""
        if not self._between_passes:  # the last pass was not read to its end
            self._empty()
        self._unread, self._between_passes = batches, False
        while (pixels := self._run()) is not None:
            batch = self._running.popleft()
            yield Images(pixels, batch.labels, None, batch.mix)
        self._end_pass()

    def _run(self) -> Any:
        try:
            return self._pipeline.run()[0].as_tensor()
        except StopIteration:
            return None
        except RuntimeError as problem:
            for batch in self._running:
                if name := self._refused(batch):
                    raise ImagesError(f"{name}: cannot be read as an image by DALI; copy the file again") from problem
            raise

    def _empty(self) -> None:
        self._unread = iter(())
        while self._run() is not None:
            pass
        self._end_pass()

    def _end_pass(self) -> None:
        self._pipeline.reset()
        self._running.clear()
        self._between_passes = True

    def _next(self) -> tuple[list[Array], Array, Array]:
        batch = next(self._unread)
        self._running.append(batch)
        return inputs(batch)

    @cached_property
    def _pipeline(self) -> Any:
        return self._built(self._next, self._form, AHEAD)

    def _built(self, source: Any, form: Form, ahead: int) -> Any:
        fn, types = self._dali.fn, self._dali.types
        methods = {Image.Resampling.BILINEAR: types.INTERP_LINEAR, Image.Resampling.BICUBIC: types.INTERP_CUBIC}
        pipeline = self._dali.Pipeline(form.batch_size, form.threads, form.gpu, prefetch_queue_depth=ahead)
        with pipeline:
            files, starts, ends = fn.external_source(source=source, num_outputs=3)
            pictures = fn.decoders.image(
                files,
                device="cpu" if form.gpu is None else "mixed",
                output_type=types.RGB,
                adjust_orientation=False,  # as the other readers
                jpeg_fancy_upsampling=True,  # as libjpeg
                **({} if form.gpu is None else {"affine": False}),  # the ranks of a host would share the first cores
            )
            pipeline.set_outputs(
                fn.resize(
                    pictures,
                    size=(form.size, form.size),
                    roi_start=starts,
                    roi_end=ends,
                    interp_type=methods[form.resampling],
                    antialias=True,
                )
            )
        pipeline.build()
        _PIPELINES.add(pipeline)
        return pipeline

    def _refused(self, batch: Encoded) -> str | None:
        """Return the first file that DALI cannot decode on the host; DALI's message does not name it."""
        of_each = ([[part] for part in parts] for parts in zip(*inputs(batch), strict=True))
        pipeline = self._built(of_each, self._form._replace(batch_size=1, gpu=None), 1)  # a GPU may have failed itself
        for name in batch.names:
            try:
                pipeline.run()
            except RuntimeError:
                return name
        return None


def inputs(batch: Encoded) -> tuple[list[Array], Array, Array]:
    """Return the files, and the first and last corner (y, x) of each box; a mirrored box begins at its right."""
    left, top, right, bottom = np.asarray(batch.boxes, np.float32).T
    if batch.mirrored is not None:
        mirrored = np.asarray(batch.mirrored)
        left, right = np.where(mirrored, right, left), np.where(mirrored, left, right)
    shapes, parts = np.asarray(batch.shapes).tolist(), np.split(np.asarray(batch.data), np.asarray(batch.ends)[:-1])
    files = [_as_file(part, *shape) for part, shape in zip(parts, shapes, strict=True)]
    return files, np.stack([top, left], 1), np.stack([bottom, right], 1)


def _as_file(data: Array, height: int, width: int) -> Array:
    """Return a JPEG file as it is, and decoded pixels as a PPM file, which DALI reads without loss."""
    if not height:
        return data
    header = np.frombuffer(f"P6\n{width} {height}\n255\n".encode(), np.uint8)
    return np.concatenate([header, data])


def _package() -> Any:
    try:
        from nvidia import dali
        from nvidia.dali import fn, types  # noqa: F401 - they become attributes of the package
    except ImportError as error:
        raise ImagesError(
            f"reader='dali' needs NVIDIA DALI, which cannot be imported: {error}; add nvidia-dali-cuda130 "
            "(for CUDA 12: nvidia-dali-cuda120) to config/requirements.txt in the vendor's folder of this case, "
            "or set reader = 'pillow'"
        ) from error
    return dali
