"""Checks of the copies between host and device: on the CPU, and with the streams of a made device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

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


def check_copies_move_random_bytes() -> None:
    made = transfer()
    for point in made.points():
        made.prepare(point)
        made.run(2)
        made.release()
    source, target = torch.randint(0, 256, (4096,), dtype=torch.uint8), torch.zeros(4096, dtype=torch.uint8)
    measurement._one(target, source)(1)
    assert torch.equal(source, target)


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


class Stream:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: Any) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


class Target:
    def __init__(self, name: str, streams: Streams) -> None:
        self.name, self.streams = name, streams

    def copy_(self, source: object, non_blocking: bool) -> None:
        assert non_blocking
        self.streams.log.append(f"{self.name} from {source} on {self.streams.on}")


def check_both_directions_lie_between_the_marks_of_the_current_stream() -> None:
    streams = Streams()
    original = measurement.devices.backend
    measurement.devices.backend = lambda _: streams
    try:
        here: Any = Target("device", streams), "host"
        there: Any = Target("back", streams), "copy"
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
