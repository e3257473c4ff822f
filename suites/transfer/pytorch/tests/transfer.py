"""Checks of the copies between host and device: on the CPU, and with the streams of a made device."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import checking
import measurement
import torch


def transfer(pins: bool = False, stream: object = None) -> measurement.Transfer:
    made = measurement.Transfer(checking.context("small"))
    made._pins, made._stream = pins, stream
    return made


def check_the_bytes_of_both_directions_count() -> None:
    series = {}
    made = transfer(pins=True, stream=object())
    for point in made.points():
        assert made.work(point).keys() == {point.series}
        if point.values["bytes"] == 1 << 20:
            series[point.series] = made.work(point)[point.series] / (1 << 20)
    assert series == {"h2d_pageable": 1, "d2h_pageable": 1, "h2d_pinned": 1, "d2h_pinned": 1, "both_pinned": 2}


def check_only_what_the_device_can_do_is_measured() -> None:
    assert {point.series for point in transfer().points()} == {"h2d_pageable", "d2h_pageable"}
    assert {point.series for point in transfer(pins=True).points()} == {
        "h2d_pageable", "d2h_pageable", "h2d_pinned", "d2h_pinned",
    }, "without streams there is no copy in both directions"  # fmt: skip


def answer(copy: Callable[..., object]) -> None:
    """Run and check each point with this method instead of ``copy_``."""
    made = transfer()
    for point in made.points():
        made.prepare(point)
        with mock.patch.object(torch.Tensor, "copy_", copy):
            made.run(40)
        made.check(point)
        made.release()


def check_less_than_all_bytes_is_found() -> None:
    copy, calls = torch.Tensor.copy_, itertools.count()
    answer(copy)

    def quarter(target: torch.Tensor, source: torch.Tensor, **options: Any) -> object:
        part = len(target) // 4
        return copy(target[:part], source[:part], **options)

    def every_16th(target: torch.Tensor, source: torch.Tensor, **options: Any) -> object:
        return copy(target, source, **options) if next(calls) % 16 == 0 else target

    for patch in (quarter, every_16th, lambda target, *_, **__: target):
        checking.raises(RuntimeError, functools.partial(answer, patch), "rank 0: h2d_pageable 1048576: wrong answer")


class Streams:
    """A made torch.<type> that records the order of events on its two streams."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.on = "current"

    def current_stream(self) -> Any:
        return Stream("current", self.log)

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.on = stream.name
        yield
        self.on = "current"

    def copy(self, which: str, iterations: int) -> None:
        self.log += [f"{which} on {self.on}"] * iterations


class Stream:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: Any) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


def check_both_directions_lie_between_the_marks_of_the_current_stream() -> None:
    streams = Streams()
    original = measurement.devices.backend
    measurement.devices.backend = lambda _: streams
    try:
        here = functools.partial(streams.copy, "device from host")
        there = functools.partial(streams.copy, "back from copy")
        measurement._both(torch.device("cpu"), Stream("other", streams.log), here, there)(2)
    finally:
        measurement.devices.backend = original
    assert streams.log == [
        "other waits for current",
        "back from copy on other",
        "back from copy on other",
        "device from host on current",
        "device from host on current",
        "current waits for other",
    ]
